// What links and forms cannot do: open dialogs over the page, keys, quiet polling, and a hint at what is new.
// Every page works without this file.
(() => {
  "use strict";
  const $ = (selector, within = document) => within.querySelector(selector);
  const dialog = $("#dialog");

  // A hidden tab asks for nothing, and neither does a page that was refused. What was put off until an answer came would
  // ask for the same again.
  document.addEventListener("htmx:beforeRequest", (event) => {
    const { elt, requestConfig } = event.detail;
    if (!elt.hasAttribute("data-live")) return;
    if (document.hidden || lost === REFUSED || requestConfig.path !== elt.getAttribute("hx-get")) event.preventDefault();
  });

  // A part of the page in which a person is typing is not replaced.
  const isChanged = (field) => (/^(checkbox|radio)$/.test(field.type) ? field.checked !== field.defaultChecked : field.value !== field.defaultValue);
  const typing = (part) => {
    const held = part && part.contains(document.activeElement) && document.activeElement;
    if (held && held.matches("input:not([type=search]), textarea, select")) return true;
    if (!part || $("select.changed", part)) return Boolean(part);
    return [...part.querySelectorAll("input[name], textarea")].some(isChanged);
  };
  document.addEventListener("htmx:oobBeforeSwap", ({ detail }) => { if (typing(detail.target)) detail.shouldSwap = false; });
  // What is put into the page takes the focus where it takes the place of the element that has it, and in some browsers
  // where it moves that element. It goes back there, or to what stands for it now.
  let focused = null;
  document.addEventListener("htmx:beforeSwap", () => {
    const element = document.activeElement;
    focused = isLost() ? null : { element, within: element.parentElement.closest("[id]"), rows: rowsBeside(element) };
  });
  const isLost = () => !document.activeElement || document.activeElement === document.body;
  // If the row is gone, the keyboard goes on in the one behind it, or else in the one before it.
  function rowsBeside(element) {
    const all = rows(), own = all.findLastIndex((row) => row.contains(element));
    return own < 0 ? [] : [...all.slice(own), ...all.slice(0, own).reverse()];
  }
  function standsFor({ element, within }) {
    if (element.isConnected) return element;
    if (element.id) return document.getElementById(element.id);
    const part = within && document.getElementById(within.id), says = (one) => one.getAttribute("href") || one.textContent.trim();
    return part && [...part.querySelectorAll(element.localName)].find((one) => says(one) === says(element));
  }
  function besideIt({ element, rows }, target, asked) {
    if (!asked) return null;
    if (asked.hasAttribute("data-live")) return rows.find((row) => row.isConnected);
    // Who has asked for more goes on in the first of it.
    if (asked !== element) return null;
    return target.matches("[data-row]") ? target : $("a[href], button", target);
  }
  function focusAgain({ target, detail }) {
    const place = focused && isLost() && (standsFor(focused) || besideIt(focused, target, detail.requestConfig?.elt));
    if (!place) return;
    if (place.matches("[data-row], [data-card]") && !place.matches("a, button")) place.tabIndex = -1;
    place.focus({ preventScroll: true });
  }
  document.addEventListener("htmx:oobAfterSwap", focusAgain);
  document.addEventListener("htmx:afterSwap", focusAgain);
  // Of a list of cards only those in which a person is typing stay as they are. Where one of these is not in the list any
  // more, all of it stays, and the page says so.
  function keepCards(detail) {
    const cards = [...detail.target.querySelectorAll("[data-card]")].filter((card) => typing(card));
    const id = (card) => `id="${card.id}"`;
    const keeps = cards.length > 0 && cards.every((card) => detail.serverResponse.includes(id(card)));
    if (keeps) cards.forEach((card) => { detail.serverResponse = detail.serverResponse.replace(id(card), "$& data-keep"); });
    return keeps;
  }
  document.addEventListener("htmx:beforeSwap", ({ detail }) => {
    if (!detail.shouldSwap || !detail.requestConfig.elt.hasAttribute("data-live")) return;
    // The answer may be for another element than that which asked.
    detail.swapOverride = "morph";
    if (!detail.target.hasAttribute("data-live")) return;
    const held = typing(detail.target) && !keepCards(detail), note = $("#held");
    if (held) detail.shouldSwap = false;
    if (!note || note.hidden === !held) return;
    note.hidden = !held;
    note.textContent = held ? note.dataset.text : "";
  });

  // A dialog that is refused comes back with an error status, and stays a dialog: the focus goes to what is wrong.
  const isRefusedForm = (xhr) => xhr.status >= 400 && xhr.responseText.trimStart().startsWith("<form");
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (isRefusedForm(event.detail.xhr)) {
      event.detail.shouldSwap = true;
      event.detail.isError = false;
    }
  });
  document.addEventListener("htmx:afterSettle", (event) => {
    const form = $("form.dialog", dialog);
    if (!form || !dialog.open || !(form === event.detail.elt || dialog.contains(event.detail.target))) return;
    toWhatIsWrong(form);
  });
  function toWhatIsWrong(form) {
    const wrong = $("[aria-invalid=true]:not([type=hidden]), .wrong :is(input, textarea, select)", form);
    if (wrong) wrong.focus();
  }
  // The same form as a page of its own.
  const page = $("main form.dialog");
  if (page) toWhatIsWrong(page);

  document.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target.id === "dialog-body" && !dialog.open) dialog.showModal();
    if (event.detail.elt.matches("#sentinel, #talk, #reply")) grown();
  });

  // A page to which a person goes back is drawn anew. Its form has the id with which it was sent, by which the server
  // sees that it is sent again. An answer to a form keeps its place: the browser asks before it sends that form again.
  const formId = () => $("main input[name=form_id]");
  if (formId() && !("posted" in document.body.dataset)) {
    document.addEventListener("submit", (event) => {
      if (formId().form === event.target && asked === event.target) history.replaceState({ ...history.state, formId: formId().value }, "");
    });
    if (history.state && history.state.formId) formId().value = history.state.formId;
  }

  // Where the login has ended, the server leads to the form of the login. The page stays as long as it holds what a person
  // has typed, or wants to send: they log in in another tab.
  function loginOf(xhr) {
    const target = xhr.getResponseHeader("HX-Redirect");
    return target && new URL(target, location).pathname === document.body.dataset.login ? target : "";
  }
  document.addEventListener("htmx:beforeOnLoad", (event) => {
    const { xhr, requestConfig } = event.detail;
    if (loginOf(xhr) && (requestConfig.verb !== "get" || typing(document.body))) event.preventDefault();
  });
  // That login has another token; for the server to see whether it is one of the same user, it is told whose page this is.
  const token = () => /(?:^|; )csrftoken=([^;]+)/.exec(document.cookie)?.[1];
  document.addEventListener("htmx:configRequest", ({ detail }) => {
    if (detail.verb === "get") return;
    if (token()) detail.parameters.csrfmiddlewaretoken = token();
    detail.headers["Desk-User"] = document.body.dataset.user;
  });
  const LOG_IN = "Log in in a new tab";
  function inNewTab(address, name) {
    const link = { href: address, target: "_blank", rel: "noopener", className: "link", textContent: name };
    return Object.assign(document.createElement("a"), link);
  }

  document.addEventListener("click", (event) => {
    if (event.target === dialog || event.target.closest("#dialog [data-close]")) {
      event.preventDefault();
      dialog.close();
    }
  });

  // What a person asks for and does not get is said, in the words of the page that the server answers with if it is one
  // of the desk. Live parts say so by themselves (`heard`).
  const isOwn = (elt) => !elt.hasAttribute("data-live") && elt.getAttribute("hx-trigger") !== "load";
  function why(xhr, sends) {
    const text = $("main h1 + p", new DOMParser().parseFromString(xhr.responseText, "text/html"));
    if (text && (sends || xhr.status < 500)) return `${text.previousElementSibling.textContent}. ${text.textContent}`;
    const what = xhr.status ? `The server answered with error ${xhr.status}.` : "No answer came from the server.";
    return what + (sends ? " What you sent may have been carried out: check before you send it again." : " Nothing was changed. Try again.");
  }
  // In an open dialog beside its buttons, since nothing else is reached then.
  function sayFailure(text, address, name) {
    $("#failure")?.remove();
    const note = Object.assign(document.createElement("p"), { id: "failure", className: dialog.open ? "said error" : `toast ${address ? "stays" : ""}` });
    note.append(text);
    if (address) note.append(" ", inNewTab(address, name));
    if (!dialog.open) {
      note.append(" ", Object.assign(document.createElement("button"), { type: "button", className: "plain", textContent: "Close", onclick: () => note.remove() }));
      return $("#toasts").append(note);
    }
    note.role = "alert";
    const buttons = $(".acts", dialog);
    if (buttons) buttons.before(note);
    else $("#dialog-body").prepend(note);
    note.scrollIntoView({ block: "center" });
  }
  // Of an element that a live part has replaced meanwhile the page hears no events, so the request itself is listened to.
  function watch(xhr, sends, stays = () => sends || typing(document.body)) {
    $("#failure")?.remove();
    const ended = "your login has ended. What you typed is kept here. Log in again, then come back and try again.";
    const tell = () => sayFailure(why(xhr, sends), sends && location.href, "Open this page as it is now");
    xhr.addEventListener("load", () => {
      if (loginOf(xhr)) return stays() && sayFailure(`Nothing was sent: ${ended}`, loginOf(xhr), LOG_IN);
      if (xhr.status >= 400 && !isRefusedForm(xhr)) tell();
    });
    for (const name of ["error", "timeout"]) xhr.addEventListener(name, tell);
  }
  document.addEventListener("htmx:beforeRequest", ({ detail }) => {
    if (isOwn(detail.elt)) watch(detail.xhr, detail.requestConfig.verb !== "get");
  });
  // A form whose answer is a page of its own would leave what is typed behind, so the server is asked first whether this
  // user is still logged in.
  let asks = null, asked = null;
  document.addEventListener("submit", (event) => {
    const { target: form, submitter } = event, { keys, user } = document.body.dataset;
    if (event.defaultPrevented || form.method !== "post" || !user || form === asked) return;
    event.preventDefault();
    if (asks === form) return;
    asks = form;
    const xhr = new XMLHttpRequest();
    watch(xhr, false, () => true);
    xhr.addEventListener("loadend", () => {
      asks = null;
      if (xhr.status !== 200 || loginOf(xhr)) return;
      if (token()) form.elements.csrfmiddlewaretoken.value = token();
      asked = form;
      form.requestSubmit(submitter);
      asked = null;
    });
    xhr.open("GET", keys);
    const headers = { "HX-Request": "true", "HX-Current-URL": location.href, "Desk-User": user };
    for (const name in headers) xhr.setRequestHeader(name, headers[name]);
    xhr.send();
  });

  // The page grew below what the reader looks at.
  const fresh = $("#fresh");
  const last = () => $("#timeline > .step:last-of-type") || $("#sentinel");
  const below = () => last() && last().getBoundingClientRect().top > window.innerHeight;
  // Who reads the end, or has just sent a message, is kept at the end; others are told of new steps.
  const steps = () => document.querySelectorAll("#timeline > .step").length;
  let before = { steps: steps(), atEnd: false };
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (!event.detail.elt.matches("#sentinel, #talk, #reply")) return;
    const end = $("#inbox");
    before = { steps: steps(), atEnd: Boolean(end) && end.getBoundingClientRect().bottom <= window.innerHeight + 4 };
  });
  function grown() {
    const end = document.activeElement.closest("#say") || $("#inbox");
    if (before.atEnd && end) return end.scrollIntoView({ block: "nearest" });
    if (fresh && steps() > before.steps && below()) fresh.hidden = false;
  }

  // A live page says when it no longer hears of changes, and when it does again. One that is refused asks no more.
  const connection = $("#connection"), REFUSED = "refused";
  let lost = "";
  function heard(why, login) {
    if (!connection || why === lost || lost === REFUSED) return;
    lost = why;
    connection.hidden = false;
    connection.classList.toggle("error", Boolean(lost));
    connection.classList.toggle("done", !lost);
    connection.textContent = connection.dataset[lost || "back"];
    if (login) connection.append(" ", inNewTab(login, LOG_IN));
    if (lost === REFUSED) {
      deafen();
      connection.append(" ", Object.assign(document.createElement("a"), { href: connection.dataset.list, className: "link", textContent: "Go to the sessions" }));
    }
    if (!lost) setTimeout(() => { connection.hidden = !lost; }, 4000);
  }
  // These say that the same request may be answered later.
  const LATER_STATUSES = [408, 425, 429];
  function hear(xhr) {
    const isAnswered = xhr.status < 400, isLost = xhr.status >= 500 || LATER_STATUSES.includes(xhr.status);
    heard(loginOf(xhr) ? "ended" : isAnswered ? "" : isLost ? "lost" : REFUSED, loginOf(xhr));
  }
  const isLive = (event) => event.detail.elt.hasAttribute("data-live");
  document.addEventListener("htmx:sendError", (event) => { if (isLive(event)) heard("lost"); });
  document.addEventListener("htmx:timeout", (event) => { if (isLive(event)) heard("lost"); });
  // An answer that takes the place of the element that asked is told of only before it does.
  for (const name of ["htmx:beforeSwap", "htmx:afterOnLoad"]) {
    document.addEventListener(name, (event) => { if (isLive(event)) hear(event.detail.xhr); });
  }
  document.addEventListener("htmx:responseError", (event) => { if (isLive(event)) hear(event.detail.xhr); });

  // Where the server offers it, a page of a session is told that there is news, and only then asks. Each keep-alive of
  // the stream carries the number of the session's last change, whether its worker is lost, and who else has it open;
  // while it listens it says only every four minutes that it is open. Without a stream, or once that ends or falls
  // silent, the page polls as it would otherwise, and listens again later.
  const STALLED = 9500, SOON = 29500, HERE = 235000, LATER = 30000, SETTLED = 60, SILENT = 50000;
  let stream = null, listens = false, heardAt = 0, listenAgainAt = 0, askedAt = 0, asking = null, again = false, saidAt = Date.now();
  const listener = () => $("[data-news]");
  function ask() {
    if (asking && Date.now() - askedAt < STALLED) again = true;
    else if (listener()) htmx.trigger(listener(), "network");
  }
  function deafen() {
    if (stream) stream.close();
    [stream, listens] = [null, false];
  }
  function listenLater() {
    deafen();
    const wait = LATER * (1 + Math.random());
    listenAgainAt = Date.now() + wait;
    setTimeout(listen, wait + 1);
  }
  function hears() {
    if (stream && Date.now() - heardAt > SILENT) listenLater();
    return listens;
  }
  // After an answer that did not come, the page polls until one does.
  const isQuiet = () => hears() && !lost;
  function listen() {
    if (document.hidden || lost === REFUSED || !listener()) return deafen();
    if (stream || Date.now() < listenAgainAt) return;
    heardAt = Date.now();
    stream = new EventSource(listener().dataset.news);
    stream.onopen = () => { [listens, heardAt] = [true, Date.now()]; ask(); };
    stream.onmessage = ({ data }) => {
      heardAt = Date.now();
      const [what, change, lost, others] = data.split(" ");
      const shown = listener(), line = $("[data-others]");
      // Where the server cannot say how the session stands, the page asks, and hears why.
      const isUnknown = change === "", isNewer = shown && Number(change) > Number(shown.dataset.after);
      if (what === "news" || isUnknown || isNewer || (shown && change && lost !== shown.dataset.lost)) ask();
      if (others !== undefined && line && others !== line.dataset.others) htmx.trigger(line, "others");
    };
    stream.onerror = () => {
      listenLater();
      ask();
    };
  }
  document.addEventListener("htmx:beforeRequest", (event) => {
    const asks = event.detail.elt, byTimer = !event.detail.requestConfig.triggeringEvent;
    if (asks.hasAttribute("data-others") && byTimer && isQuiet() && Date.now() - saidAt < HERE) event.preventDefault();
    if (!asks.hasAttribute("data-news")) return;
    // Of what happens by the clock no stream tells: the page asks when it has, until it is drawn again.
    asks.dataset.drawnAt ||= Date.now();
    const due = asks.dataset.asksIn ? Number(asks.dataset.drawnAt) + asks.dataset.asksIn * 1000 : Infinity;
    if (event.defaultPrevented) return;
    if (byTimer && isQuiet() && (Date.now() < due || Date.now() - askedAt < SOON)) return event.preventDefault();
    [askedAt, asking] = [Date.now(), event.detail.xhr];
  });
  // What comes while an answer is on its way, or is put into the page, is asked for behind it.
  document.addEventListener("htmx:afterRequest", (event) => {
    if (event.detail.successful && event.detail.elt.hasAttribute("data-others")) saidAt = Date.now();
    if (event.detail.xhr !== asking) return;
    setTimeout(() => {
      asking = null;
      if (again) { again = false; ask(); }
      listen();
    }, SETTLED);
  });
  document.addEventListener("visibilitychange", listen);
  window.addEventListener("pagehide", deafen);
  window.addEventListener("pageshow", listen);

  // Once there is a network again, what is live is asked for at once.
  window.addEventListener("online", () => document.querySelectorAll("[data-live]").forEach((live) => htmx.trigger(live, "network")));
  if (fresh) {
    fresh.addEventListener("click", () => last().scrollIntoView({ block: "center" }));
    document.addEventListener("scroll", () => { if (!below()) fresh.hidden = true; }, { passive: true });
  }

  // How long ago something was, and how long it is until it expires, is kept right while the page is open, in the words
  // of the server; dates stay.
  function age(seconds) {
    if (seconds < 5) return "just now";
    if (seconds < 60) return `${Math.floor(seconds)} s`;
    const minutes = Math.floor(seconds / 60);
    const hours = Math.floor(minutes / 60), rest = minutes % 60;
    if (hours >= 48) return `${Math.floor(hours / 24)} d`;
    return hours ? `${hours} h${rest ? ` ${rest} min` : ""}` : `${minutes} min`;
  }
  function left(seconds) {
    if (seconds > 120) return age(seconds);
    const whole = Math.ceil(seconds), minutes = Math.floor(whole / 60), rest = whole % 60;
    return [minutes && `${minutes} min`, rest && `${rest} s`].filter(Boolean).join(" ");
  }
  // A text that is written anew would not be selected any more.
  const write = (time, text) => { if (time.textContent !== text) time.textContent = text; };
  setInterval(() => {
    if (document.hidden) return;
    document.querySelectorAll("time[data-age]").forEach((time) => {
      const seconds = (Date.now() - Date.parse(time.dateTime)) / 1000;
      if (seconds < 0 || seconds >= 86400) return;
      const text = age(seconds);
      write(time, text === "just now" ? text : time.dataset.age.replace("{}", text));
    });
    document.querySelectorAll("time[data-left]").forEach((time) => {
      const seconds = (Date.parse(time.dateTime) - Date.now()) / 1000;
      write(time, seconds > 0 ? time.dataset.left.replace("{}", left(seconds)) : "expired");
    });
  }, 10000);

  // As the server writes it: exact, with no fewer decimal places than the currency has. "" for what is no amount.
  function money(text, { before, after, places }) {
    if (!/^\s*-?[0-9]+([.][0-9]+)?\s*$/.test(text)) return "";
    const digits = { minimumFractionDigits: Number(places), maximumFractionDigits: 20 };
    return before + Number(text).toLocaleString("en-US", digits) + after;
  }
  // What a person would not see is shown by name, as the server does: what orders a line for another direction of
  // writing, controls, and marks without a width that do not follow a letter of another script or an emoji.
  const UNSEEN = /(?![\t\n\r\u200b-\u200d\ufe00-\ufe0f])[\p{Cc}\p{DI}\p{Zl}\p{Zp}\ufff9-\ufffb]|(?<![^\0-\x7f])[\u200b-\u200d\ufe00-\ufe0f]/gu;
  const visible = (text) => text.replace(UNSEEN, (found) => `⟨U+${found.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
  // A card says everywhere what will be sent: in its sentence, beside what was requested, and on its button.
  function tell(field) {
    const card = field.closest("[data-card], form.dialog");
    if (!card || !field.name || !("asked" in field.dataset)) return;
    const changed = field.value !== field.dataset.asked;
    const typed = (dataset) => ("places" in dataset && money(field.value, dataset)) || visible(field.value) || "–";
    field.classList.toggle("changed", changed);
    const note = $("[data-if-changed]", field.parentElement);
    if (note) note.hidden = !changed;
    card.querySelectorAll(`[data-of="${CSS.escape(field.name)}"]`).forEach((shown) => {
      shown.textContent = changed ? typed(shown.dataset) : shown.dataset.requested;
      const argument = shown.closest("[data-argument]");
      if (!argument) return;
      argument.hidden = !changed && !field.dataset.asked;
      const instead = shown.closest("ins");
      instead.hidden = !changed;
      if (instead.firstElementChild === instead.firstChild) instead.prepend("will run with ");
      argument.classList.toggle("replaced-by", changed);
    });
    const sum = $(`[data-sum-of="${CSS.escape(field.name)}"]`, card);
    if (sum) sum.textContent = money(field.value, sum.dataset);
    const edited = $("[data-edited]", card);
    if (edited) edited.hidden = !$(".changed", card);
    if (card.ariaLabel) card.ariaLabel = card.ariaLabel.split(":")[0] + ": " + $(".what", card).textContent;
  }
  document.addEventListener("input", (event) => tell(event.target));

  // What a person has changed in a card is as it was requested again, and its fields are closed.
  function discard(edit) {
    let changed = false;
    edit.querySelectorAll("input, textarea, select").forEach((field) => {
      const before = [field.value, field.checked].join();
      if ("asked" in field.dataset) field.value = field.dataset.asked;
      else { field.value = field.defaultValue; field.checked = field.defaultChecked; }
      if (before === [field.value, field.checked].join()) return;
      changed = true;
      field.dispatchEvent(new Event("input", { bubbles: true }));
    });
    edit.open = false;
    $("summary", edit).focus();
    if (changed) $("#announce").textContent = "Edit discarded. The arguments are as requested again.";
  }
  document.addEventListener("click", (event) => {
    if (!event.target.closest("[data-discard]")) return;
    event.preventDefault();
    discard(event.target.closest("details.edit"));
  });

  // The button of a decision is named by the outcome that is chosen.
  function nameButton(form) {
    const chosen = $("input[name=decision]:checked", form);
    const name = chosen && $(`[data-if-${CSS.escape(chosen.value)}]`, form);
    if (name) name.textContent = name.getAttribute(`data-if-${chosen.value}`);
  }
  document.addEventListener("change", ({ target }) => {
    if (target.name !== "decision") return;
    nameButton(target.form);
    // What was wrong with the text of the outcome that was chosen before is wrong no more.
    target.form.querySelectorAll(":is(.for-result, .for-message).wrong").forEach((field) => field.classList.remove("wrong"));
  });
  document.addEventListener("htmx:load", (event) => { const form = event.detail.elt.closest("form.dialog") || $("form.dialog", event.detail.elt); if (form) nameButton(form); });
  document.querySelectorAll("form.dialog").forEach(nameButton);

  // Who opens the fields of a card goes on in the first of them, as with the key.
  document.addEventListener("click", (event) => {
    const edit = event.target.closest("details.edit > summary")?.parentElement;
    if (!edit || edit.open) return;
    // Opened here, so that the field has the focus before the next key is pressed.
    event.preventDefault();
    edit.open = true;
    $("[data-asked]", edit)?.focus();
  });

  // On a phone the open tab may lie beyond the edge of its row.
  const showOpenTab = (within) => within.querySelectorAll(".tabs, .bar nav").forEach((row) => {
    const open = $("[aria-current]", row);
    if (!open) return;
    const [place, of] = [open.getBoundingClientRect(), row.getBoundingClientRect()];
    row.scrollLeft += place.left - of.left - (of.width - place.width) / 2;
  });
  showOpenTab(document);
  document.addEventListener("htmx:load", (event) => showOpenTab(event.detail.elt));

  // Copying needs JavaScript: without it the button stays hidden, and the text can be selected.
  const offerCopies = (within) => within.querySelectorAll("[data-copy]").forEach((button) => { button.hidden = !navigator.clipboard; });
  offerCopies(document);
  document.addEventListener("htmx:load", (event) => offerCopies(event.detail.elt));
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
    $("#announce").textContent = "Copied";
  });

  // After a decision the address names where the keyboard goes on: of the inbox the next line, or the heading; of a
  // session the call that was decided.
  const place = location.hash.slice(1);
  if (/^(line-|inbox-heading$|c[0-9]+$)/.test(place)) {
    const next = document.getElementById(place) || $("#inbox-heading");
    if (next) next.focus();
  }

  // Escape gives up an edit that is open within a card, as it closes a dialog.
  document.addEventListener("keydown", (event) => {
    const edit = event.key === "Escape" && event.target.closest("details.edit[open]");
    if (!edit) return;
    event.preventDefault();
    discard(edit);
  });

  // Keys. A row, a step or an approval is chosen by focus.
  const rows = () => [...document.querySelectorAll("[data-row], [data-card]")].filter((row) => row.offsetParent);
  function move(by) {
    const all = rows();
    if (!all.length) return;
    // An approval within a step is a row of its own, behind the step.
    const now = all.findLastIndex((row) => row.contains(document.activeElement));
    const next = all[Math.max(0, Math.min(all.length - 1, now < 0 ? (by > 0 ? 0 : all.length - 1) : now + by))];
    if (!next.matches("a, button")) next.tabIndex = -1;
    next.focus();
    next.scrollIntoView({ block: "nearest" });
  }
  // Enter opens the chosen step: everything that is folded in it, or folds it again.
  function openStep(step) {
    const parts = [...step.querySelectorAll("details")];
    const open = parts.some((part) => !part.open);
    parts.forEach((part) => { part.open = open; });
  }
  function press(key) {
    const card = document.activeElement.closest("[data-card]") || (document.querySelectorAll("[data-card]").length === 1 && $("[data-card]"));
    if (key === "e" && card) {
      const edit = $("details.edit", card);
      if (edit) edit.open = true;
      return $("[data-asked]", card);
    }
    return (card && $(`[data-key="${key}"]`, card)) || $(`[data-key="${key}"]:not([data-card] *)`);
  }
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
    if (event.target.matches("input, textarea, select")) return;
    if (event.key === "j" || event.key === "k") return move(event.key === "j" ? 1 : -1);
    if (event.key === "Enter" && event.target.matches("li[data-row]")) return openStep(event.target);
    if (event.key === "Enter" && event.target.matches("[data-card]")) return $("[data-open]", event.target)?.click();
    if (event.key === "?") return htmx.ajax("GET", document.body.dataset.keys, "#dialog-body");
    if (!"/aernp".includes(event.key) || event.key.length !== 1) return;
    const target = press(event.key);
    if (!target || target.disabled) return;
    event.preventDefault();
    // A button that does not work says why.
    if (target.ariaDisabled === "true") { target.focus(); return target.popoverTargetElement?.togglePopover(true); }
    // Approving is one step from done: the key brings you to the button, Enter presses it.
    if (event.key === "a" || target.matches("input, textarea")) target.focus();
    else target.click();
  });

  // Ctrl+Enter sends what is being typed. A decision about a call is only brought to its button, also by Enter alone in
  // one of its fields, which would press the first button. A recorded result does not go with edited arguments.
  const works = "button:not([type=button], [type=reset], .unseen, :disabled)";
  const sender = (form) => ($(".changed", form) && $(`${works}:not([formaction])`, form)) || $(`${works}.first`, form) || $(works, form);
  document.addEventListener("keydown", (event) => {
    const { target } = event, { form } = target, sends = event.ctrlKey || event.metaKey;
    if (event.key !== "Enter" || !form || event.isComposing) return;
    const inList = form.id === "batch" || Boolean(target.closest("[data-card]"));
    const decides = inList || "decides" in form.dataset;
    // The key that brought the focus to the button, and is still held, does not press it.
    if (decides && event.repeat && target.matches("button")) return event.preventDefault();
    if (!sends && !(decides && target.matches("input"))) return;
    const button = sender(form);
    if (!button) return;
    event.preventDefault();
    if (sends && !inList) form.requestSubmit(button);
    else button.focus();
  });
})();
