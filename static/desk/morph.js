// Brings a part of the page up to date with how the server draws it now, and changes only what is different: the rest
// keeps the focus, what is selected or open in it, and its place on the screen. htmx calls it as the swap style `morph`.
(() => {
  "use strict";
  // An element that is sent like this stays as the page has it.
  const KEPT = "[hx-preserve], [data-keep]";

  // All ids within each element of a tree: they tell which of two elements is about the same thing.
  function idsWithin(root) {
    const ids = new Map();
    for (const named of root.querySelectorAll("[id]")) {
      for (let element = named.parentElement; element; element = element === root ? null : element.parentElement) {
        if (!ids.has(element)) ids.set(element, new Set());
        ids.get(element).add(named.id);
      }
    }
    return ids;
  }

  // What an element without an id leads to or does. One that does something else must not take its place under the focus.
  const DOES = ["href", "action", "formaction", "hx-get", "hx-post", "popovertarget", "data-key", "data-copy", "name", "type"];
  function purpose(element) {
    const does = DOES.map((name) => element.getAttribute(name));
    if (element.matches("button:not([formaction]), [type=checkbox], [type=radio]")) does.push(element.getAttribute("value"));
    if (element.matches("button")) does.push(element.firstChild && element.firstChild.textContent.trim());
    return [element.tagName, ...does].join(" ");
  }

  // For each of the new elements the old one that it takes the place of.
  function pairs(before, after, ids) {
    const free = new Set(before.children), found = new Map();
    const take = (one, other) => { found.set(one, other); free.delete(other); };
    const none = new Set(), within = (element) => ids.get(element) || none;
    const share = (one, other) => [...within(one)].some((id) => within(other).has(id));
    const unnamed = [];
    for (const one of after.children) {
      const other = one.id && [...free].find((element) => element.id === one.id && element.tagName === one.tagName);
      if (other) take(one, other);
      else if (!one.id) unnamed.push(one);
    }
    for (const isSame of [share, (one, other) => !within(one).size || !within(other).size]) {
      for (const one of unnamed) {
        if (found.has(one)) continue;
        const does = purpose(one);
        const other = [...free].find((element) => !element.id && purpose(element) === does && isSame(one, element));
        if (other) take(one, other);
      }
    }
    free.forEach((element) => element.remove());
    return found;
  }

  // What a person or the script has changed is not in what the server sends.
  function isOurs(element, name) {
    return (name === "open" && element.matches("details")) || name === "tabindex" || (name === "hidden" && element.matches("[data-copy]"));
  }
  function attributes(before, after) {
    for (const { name, value } of after.attributes) {
      if (before.getAttribute(name) !== value && !isOurs(before, name)) before.setAttribute(name, value);
    }
    for (const { name } of [...before.attributes]) {
      if (!after.hasAttribute(name) && !isOurs(before, name)) before.removeAttribute(name);
    }
  }

  function put(parent, node, place) {
    if (node.parentNode === parent && parent.moveBefore) parent.moveBefore(node, place);
    else parent.insertBefore(node, place);
  }
  function children(before, after, ids, added) {
    const found = pairs(before, after, ids);
    let place = before.firstChild;
    for (const one of [...after.childNodes]) {
      const isElement = one.nodeType === Node.ELEMENT_NODE;
      const other = isElement ? found.get(one) : place && place.nodeType === one.nodeType ? place : null;
      if (!other) {
        put(before, one, place);
        if (isElement) added.push(one);
        continue;
      }
      if (other === place) place = place.nextSibling;
      else put(before, other, place);
      if (isElement) element(other, one, ids, added);
      else if (other.data !== one.data) other.data = one.data;
    }
    while (place) {
      const next = place.nextSibling;
      place.remove();
      place = next;
    }
  }
  function element(before, after, ids, added) {
    if (after.matches(KEPT) || before.isEqualNode(after)) return;
    const untouched = isAsSent(before);
    attributes(before, after);
    children(before, after, ids, added);
    if (untouched) reset(before);
  }

  // A field that was changed and put back shows no new value by itself. One that is changed keeps what is in it.
  const isBox = (field) => field.matches("[type=checkbox], [type=radio]");
  const isText = (field) => field.matches("textarea, input:not([type=hidden], [type=checkbox], [type=radio])");
  function isAsSent(field) {
    if (isBox(field)) return field.checked === field.defaultChecked;
    if (isText(field)) return field.value === field.defaultValue;
    return field.matches("select") && [...field.options].every((option) => option.selected === option.defaultSelected);
  }
  function reset(field) {
    if (isBox(field)) field.checked = field.defaultChecked;
    else if (isText(field)) { if (field.value !== field.defaultValue) field.value = field.defaultValue; }
    else for (const option of field.options) option.selected = option.defaultSelected;
  }

  // A text that changes would put the end of what is selected in it at its beginning.
  function keepingSelection(change) {
    const selection = document.getSelection();
    const { anchorNode, anchorOffset, focusNode, focusOffset, isCollapsed } = selection;
    change();
    if (isCollapsed || !anchorNode.isConnected || !focusNode.isConnected) return;
    const isAsBefore = anchorOffset === selection.anchorOffset && focusOffset === selection.focusOffset;
    if (isAsBefore && anchorNode === selection.anchorNode && focusNode === selection.focusNode) return;
    const within = (node, offset) => Math.min(offset, node.data === undefined ? node.childNodes.length : node.data.length);
    selection.setBaseAndExtent(anchorNode, within(anchorNode, anchorOffset), focusNode, within(focusNode, focusOffset));
  }

  // Makes the first element what the second one is, and returns the elements that it did not have.
  function morph(before, after) {
    const added = [], ids = new Map([...idsWithin(before), ...idsWithin(after)]);
    keepingSelection(() => element(before, after, ids, added));
    return added;
  }

  // An answer that is sent in place of an element holds it as it is now, possibly with others beside it, or others only.
  function inPlace(target, fragment, settled) {
    const sent = [...fragment.children];
    const after = sent.find((one) => one.id === target.id && one.tagName === target.tagName);
    if (!after) {
      settled.elts = settled.elts.filter((one) => one !== target).concat(sent);
      target.replaceWith(...fragment.childNodes);
      return sent;
    }
    const beside = sent.filter((one) => one !== after);
    for (const one of beside) {
      const isBefore = one.compareDocumentPosition(after) & Node.DOCUMENT_POSITION_FOLLOWING;
      target.parentNode.insertBefore(one, isBefore ? target : target.nextSibling);
    }
    settled.elts.unshift(...beside);
    const asked = target.getAttribute("hx-get"), added = morph(target, after);
    settled.tasks.push(() => {
      // What it asks for is another answer now, or none. Else a request may be on its way already.
      if (asked !== target.getAttribute("hx-get")) htmx.process(target);
      else [...target.children].forEach(htmx.process);
    });
    return [...beside, ...added];
  }

  htmx.defineExtension("morph", {
    isInlineSwap: (style) => style === "morph",
    handleSwap: (style, target, fragment, settled) => style === "morph" && inPlace(target, fragment, settled),
  });
  document.addEventListener("htmx:oobBeforeSwap", ({ detail }) => {
    // Only what takes the place of an element is sent as a fragment.
    if (!detail.shouldSwap || !(detail.fragment instanceof DocumentFragment)) return;
    detail.shouldSwap = false;
    const added = morph(detail.target, detail.fragment.firstElementChild);
    htmx.process(detail.target);
    added.forEach((one) => htmx.trigger(one, "htmx:load"));
  });
})();
