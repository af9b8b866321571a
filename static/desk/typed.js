// What a person has typed in one form is kept while they send another, by which the page is loaded anew: the message that
// they are writing to the agent, and what they have changed in the cards of other calls. Only what was typed is kept,
// since a field may show what hides a value; and only in this tab, for this user. Comes after desk.js, which says in
// every card what is typed.
(() => {
  "use strict";
  const { user, login } = document.body.dataset;
  if (!user) return sessionStorage.clear();
  const KEY = `typed by ${user}`;
  const kept = JSON.parse(sessionStorage.getItem(KEY) || "{}");
  const store = () => sessionStorage.setItem(KEY, JSON.stringify(kept));

  // A card is known by the fingerprint of what was requested: with another, what was typed is for another request.
  const fingerprintOf = (card) => {
    const own = card.querySelector("input[name=fingerprint]"), tick = card.querySelector("input[name=call]");
    return own ? own.value : tick && tick.value.split(":")[1];
  };
  function parts() {
    const found = [...document.querySelectorAll("[data-card]")].map((card) => [fingerprintOf(card), card]);
    const say = document.getElementById("say");
    if (say) found.push([new URL(say.getAttribute("action"), location).pathname, say]);
    return found.filter(([key]) => key);
  }
  // What a person confirms to have seen may be another effect on the page that follows.
  const fieldsOf = (part) => [...part.querySelectorAll("input:not([type=hidden], [name=effects_seen]), textarea, select")];
  const nameOf = (field) => field.id || field.name;
  const isBox = (field) => field.type === "checkbox";
  function isTyped(field) {
    if (isBox(field)) return field.checked !== field.defaultChecked;
    if (field.matches("select")) return [...field.selectedOptions].some((option) => !option.defaultSelected);
    return field.value !== field.defaultValue;
  }

  function keep(isSent) {
    for (const [key, part] of parts()) {
      const typed = isSent(part) ? [] : fieldsOf(part).filter(isTyped);
      if (typed.length) kept[key] = typed.map((field) => [nameOf(field), isBox(field) ? field.checked : field.value]);
      else delete kept[key];
    }
    store();
  }
  document.addEventListener("htmx:beforeOnLoad", ({ detail }) => {
    const target = detail.xhr.getResponseHeader("HX-Redirect");
    if (target && new URL(target, location).pathname !== login) keep((part) => part.contains(detail.elt));
  });
  document.addEventListener("submit", ({ target: form, defaultPrevented }) => {
    if (defaultPrevented || form.method !== "post") return;
    keep((part) => part.contains(form) || (form.id === "batch" && part.querySelector("input[name=call]:checked")));
  });

  function restore(field, value) {
    if (field.matches("select") && ![...field.options].some((option) => option.value === value)) return;
    if (isBox(field)) field.checked = value;
    else field.value = value;
    const edit = field.closest("details.edit");
    if (edit) edit.open = true;
    field.dispatchEvent(new Event("input", { bubbles: true }));
  }
  for (const [key, part] of parts()) {
    const fields = fieldsOf(part), typed = new Map(kept[key]);
    if (!fields.length) continue;
    delete kept[key];
    fields.filter((field) => typed.has(nameOf(field))).forEach((field) => restore(field, typed.get(nameOf(field))));
  }
  store();
})();
