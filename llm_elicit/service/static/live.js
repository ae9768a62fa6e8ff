"use strict";
// Parts of a page are fetched again when something happened. What has the focus keeps it.

const PACE = 1000; // milliseconds between two updates, at least
const RETRY = 3000;
const SAY_EVERY = 15000;

const connection = document.getElementById("connection");
const said = document.getElementById("said");
const { name, root = "" } = document.body.dataset;
const parts = [...document.querySelectorAll("[data-part]")];
const shown = new Map();
let last = Number(document.body.dataset.seq || 0);
let waiting = null;
let spoken = 0;

function lost() {
  connection.textContent = "Connection lost, retrying. What is shown may be old.";
  connection.hidden = false;
}

function found() {
  if (!connection.hidden) {
    connection.hidden = true;
    connection.textContent = "";
  }
}

function put(part, html) {
  if (shown.get(part) === html) {
    return;
  }
  const focused = part.contains(document.activeElement) ? document.activeElement.id : "";
  if (focused && part.querySelector("details[open]")) {
    return; // someone fills in a form there
  }
  const open = [...part.querySelectorAll("details[open]")].map((each) => each.id);
  part.innerHTML = html;
  shown.set(part, html);
  for (const id of open.filter(Boolean)) {
    const again = document.getElementById(id);
    if (again) {
      again.open = true;
    }
  }
  const again = focused && document.getElementById(focused);
  if (again) {
    again.focus({ preventScroll: true });
  }
}

async function update() {
  waiting = null;
  try {
    const answer = await fetch(root + (name ? `/campaigns/${encodeURIComponent(name)}/parts` : "/parts"));
    if (answer.status === 401 || answer.redirected) {
      location.reload();
      return;
    }
    if (!answer.ok) {
      throw new Error(answer.status);
    }
    const fresh = await answer.json();
    for (const part of parts) {
      put(part, fresh.parts[part.dataset.part]);
    }
    if (fresh.title) {
      document.title = fresh.title;
    }
    if (said && fresh.words && (Date.now() - spoken > SAY_EVERY || fresh.ended)) {
      spoken = Date.now();
      said.textContent = fresh.words;
    }
    found();
    return fresh;
  } catch (error) {
    lost();
    soon(RETRY);
  }
}

function soon(after = PACE) {
  if (waiting === null) {
    waiting = setTimeout(update, after);
  }
}

function watch() {
  const path = `${root}/api/campaigns/${encodeURIComponent(name)}/events`;
  const source = new EventSource(`${path}?since=${last}`);
  const kinds = ["planned", "answered", "failed", "throttled", "cost", "round", "live", "fitted",
    "audited", "reported", "retuned", "state"];
  for (const kind of kinds) {
    source.addEventListener(kind, (event) => {
      last = Number(event.lastEventId);
      soon();
    });
  }
  source.addEventListener("open", () => soon(0));
  source.addEventListener("error", async () => {
    const closed = source.readyState === EventSource.CLOSED;
    // A stream that ended is no lost connection: the page says which it was.
    const fresh = await update();
    if (fresh && fresh.ended) {
      source.close();
      setTimeout(watchAgain, 5 * RETRY);
    } else if (closed) {
      setTimeout(watch, RETRY);
    }
  });
}

// An ended run may be started again, here or elsewhere.
async function watchAgain() {
  const fresh = await update();
  if (fresh && !fresh.ended) {
    watch();
  } else {
    setTimeout(watchAgain, 5 * RETRY);
  }
}

if (name) {
  watch();
  // No event tells that the process which worked on the run has died.
  setInterval(() => { if (!document.hidden) { soon(0); } }, 5 * RETRY);
} else {
  setInterval(() => { if (!document.hidden) { soon(0); } }, RETRY);
}
