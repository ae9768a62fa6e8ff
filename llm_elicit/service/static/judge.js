"use strict";
// Single keys answer, and the time that an answer takes is measured while the page is visible.

const EARLY = 300; // milliseconds in which a key pressed for the question before is ignored
const LOOK = 15000; // milliseconds after which a page without a question looks for one

const form = document.getElementById("answer");
const { waits } = document.body.dataset; // the address of the next question, if there is none yet
const loaded = performance.now();
let hidden = 0;
let since = document.hidden ? loaded : null;
let sent = false;

document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    since = performance.now();
  } else if (since !== null) {
    hidden += performance.now() - since;
    since = null;
  }
});

form?.addEventListener("submit", (event) => {
  if (sent) {
    event.preventDefault();
    return;
  }
  sent = true;
  form.elements.seconds.value = ((performance.now() - loaded - hidden) / 1000).toFixed(3);
});

async function look() {
  const answer = await fetch(waits);
  if (answer.ok && !(await answer.text()).includes("data-waits")) {
    location.replace(waits);
  }
}

if (waits) {
  setInterval(() => { if (!document.hidden) { look().catch(() => {}); } }, LOOK);
}

// A page that comes back from the browser's history would send an old answer again.
window.addEventListener("pageshow", (event) => {
  if (event.persisted) {
    location.reload();
  }
});

document.addEventListener("keydown", (event) => {
  if (event.repeat || event.ctrlKey || event.altKey || event.metaKey) {
    return;
  }
  if (performance.now() - loaded < EARLY) {
    return;
  }
  const key = CSS.escape(event.key.toLowerCase());
  const chosen = document.querySelector(`[data-key="${key}"]`);
  if (chosen) {
    event.preventDefault();
    chosen.focus();
    chosen.click();
  }
});
