/* Live pages. At an event, or every two seconds where the server sends none, the page is read again, and each element
   with `data-fresh` that differs is replaced. Without this script all pages and buttons work; they stand still. */
"use strict";
(() => {
  const POLL = 2000; // ms between two readings without events
  const AGAIN = 3000; // ms before the next attempt after a failure
  const body = document.body;
  const sign = document.getElementById("pulse");
  let reading = false, waiting = false, timer = 0;

  const say = (text, kind) => {
    if (sign.textContent !== text) sign.textContent = text;
    sign.className = "pulse " + kind;
  };

  /* Times in the viewer's own zone. */
  const localise = (root) => {
    for (const time of root.querySelectorAll("time[datetime]")) {
      const moment = new Date(time.dateTime);
      if (!isNaN(moment)) {
        time.title = time.dateTime;
        time.textContent = moment.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
      }
    }
  };

  /* An element stays as it is while the viewer types in it, or has opened or closed a part of it. */
  const keep = (old) => old.contains(document.activeElement) && document.activeElement.matches("input, select, textarea");
  const open = (element) => [...element.querySelectorAll("details")].map((one) => one.open);

  const replace = (found) => {
    for (const old of document.querySelectorAll("[data-fresh]")) {
      const fresh = found.getElementById(old.id);
      if (!fresh) { if (!keep(old)) old.remove(); continue; }
      localise(fresh);
      const states = open(old);
      fresh.querySelectorAll("details").forEach((one, n) => { if (n < states.length) one.open = states[n]; });
      if (fresh.outerHTML === old.outerHTML || keep(old)) continue;
      const focused = old.contains(document.activeElement) ? path(old, document.activeElement) : null;
      const regions = [...old.querySelectorAll(".wide"), old].map((one) => one.scrollLeft);
      old.replaceWith(fresh);
      [...fresh.querySelectorAll(".wide"), fresh].forEach((one, n) => { one.scrollLeft = regions[n] || 0; });
      if (focused) at(fresh, focused)?.focus({ preventScroll: true });
    }
    /* What is new on the page takes its place behind the element that it follows there. */
    for (const fresh of found.querySelectorAll("main > [data-fresh][id]")) {
      if (document.getElementById(fresh.id)) continue;
      localise(fresh);
      const before = fresh.previousElementSibling;
      const there = before && before.id && document.getElementById(before.id);
      if (there) there.after(fresh); else document.getElementById("main").append(fresh);
    }
  };
  const path = (root, element) => {
    const steps = [];
    for (let one = element; one !== root; one = one.parentElement) steps.unshift([...one.parentElement.children].indexOf(one));
    return steps;
  };
  const at = (root, steps) => steps.reduce((one, step) => one && one.children[step], root);

  const read = async () => {
    if (document.hidden || reading) { waiting = true; return; }
    reading = true;
    waiting = false;
    clearTimeout(timer);
    let next = body.dataset.live === "poll" ? POLL : 0;
    try {
      const answer = await fetch(location.href, { headers: { "X-Live": "1" }, redirect: "error", credentials: "same-origin" });
      const found = new DOMParser().parseFromString(await answer.text(), "text/html");
      const problem = found.getElementById("problem");
      if (answer.ok && document.getElementById("problem")) { location.reload(); return; }
      if (answer.ok) { replace(found); say("Live", "on"); }
      else {
        say(problem ? problem.querySelector("h1").textContent + ". Trying again." : "The dashboard does not answer. Trying again.", "off");
        next = AGAIN;
      }
    } catch {
      say("The dashboard does not answer. Trying again.", "off");
      next = AGAIN;
    } finally {
      reading = false;
    }
    if (next) timer = setTimeout(read, next); else if (waiting) read();
  };

  const listen = () => {
    const queue = body.dataset.queue;
    const source = new EventSource("events" + (queue ? "?queue=" + queue : ""));
    source.addEventListener("open", () => { if (sign.classList.contains("off")) read(); else say("Live", "on"); });
    source.addEventListener("changed", read);
    source.addEventListener("error", () => {
      say("The dashboard does not answer. Trying again.", "off");
      if (source.readyState === EventSource.CLOSED) { body.dataset.live = "poll"; timer = setTimeout(read, AGAIN); }
    });
    addEventListener("pagehide", () => source.close());
  };

  localise(document);
  /* In a narrow window the menu scrolls: to the page that is open. */
  const current = document.querySelector(".top [aria-current]"), menu = current?.closest("nav");
  if (menu) menu.scrollLeft = current.offsetLeft - menu.offsetLeft - 40;
  if (document.getElementById("main").querySelector("#problem")) {
    if (document.getElementById("problem").dataset.problem === "503") timer = setTimeout(read, AGAIN);
  } else if (document.querySelector("[data-fresh]")) {
    if (body.dataset.live === "events") listen(); else { say("Live", "on"); timer = setTimeout(read, POLL); }
  }
  document.addEventListener("visibilitychange", () => { if (!document.hidden && waiting) read(); });
})();
