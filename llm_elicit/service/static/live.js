"use strict";
// Parts of a page are fetched again when something happened. What has the focus keeps it.

const RETRY = 3000;
const PATIENCE = 8000; // milliseconds that an answer may take
const SILENCE = 15000; // milliseconds without a sign of life on a stream, which has one in five seconds
const SAY_EVERY = 15000;

const connection = document.getElementById("connection");
const said = document.getElementById("said");
const { name, root = "" } = document.body.dataset;
const parts = [...document.querySelectorAll("[data-part]")];
const shown = new Map();
let last = Number(document.body.dataset.seq || 0);
let waiting = null;
let pause = 1000; // milliseconds from an event to an update, as the service asks for
let spoken = 0;
let fresh = new Date(); // when the page was last up to date

function lost() {
  const since = fresh.toLocaleTimeString();
  const words = `Connection lost, since ${since}; retrying. What is shown is of then.`;
  if (connection.textContent !== words) {
    connection.textContent = words;
  }
  connection.hidden = false;
}

function found() {
  fresh = new Date();
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
  const open = [...part.querySelectorAll("details[open][id]")];
  const checked = [...part.querySelectorAll("input:checked[id]")];
  part.innerHTML = html;
  for (const { id } of checked) {
    const box = document.getElementById(id);
    if (box) {
      box.checked = true;
    }
  }
  shown.set(part, html);
  for (const details of open) {
    // The element itself comes back: what is filled in there, or came back refused, stays.
    document.getElementById(details.id)?.replaceWith(details);
  }
  const again = focused && document.getElementById(focused);
  if (again) {
    again.focus({ preventScroll: true });
  }
}

async function update() {
  waiting = null;
  try {
    const path = root + (name ? `/campaigns/${encodeURIComponent(name)}/parts` : `/parts${location.search}`);
    const answer = await fetch(path, { signal: AbortSignal.timeout(PATIENCE) });
    if (answer.status === 401 || answer.redirected) {
      location.reload();
      return;
    }
    if (!answer.ok) {
      throw new Error(answer.status);
    }
    const page = await answer.json();
    for (const part of parts) {
      put(part, page.parts[part.dataset.part]);
    }
    pause = 1000 * page.pause;
    if (page.title) {
      document.title = page.title;
    }
    if (said && page.words && (Date.now() - spoken > SAY_EVERY || page.ended)) {
      spoken = Date.now();
      said.textContent = page.words;
    }
    found();
    return page;
  } catch (error) {
    lost();
    soon(RETRY);
  }
}

function soon(after = pause) {
  if (waiting === null) {
    waiting = setTimeout(update, after);
  }
}

// A server that hangs, or a proxy that keeps a dead connection, closes no stream.
function watch() {
  const path = `${root}/api/v1/campaigns/${encodeURIComponent(name)}/events`;
  const source = new EventSource(`${path}?since=${last}&alive=true`);
  let silence = null;
  const again = (after) => {
    clearTimeout(silence);
    source.close();
    setTimeout(watch, after);
  };
  const alive = () => {
    clearTimeout(silence);
    silence = setTimeout(() => { lost(); again(0); soon(0); }, SILENCE);
  };
  const kinds = ["planned", "answered", "failed", "throttled", "cost", "round", "live", "fitted",
    "audited", "reported", "retuned", "state", "note"];
  for (const kind of kinds) {
    source.addEventListener(kind, (event) => {
      last = Number(event.lastEventId);
      alive();
      soon();
    });
  }
  source.addEventListener("alive", alive);
  source.addEventListener("open", () => { alive(); soon(0); });
  source.addEventListener("error", async () => {
    const closed = source.readyState === EventSource.CLOSED;
    // A stream that ended is no lost connection: the page says which it was.
    const page = await update();
    if (page && page.ended) {
      clearTimeout(silence);
      source.close();
      setTimeout(watchAgain, 5 * RETRY);
    } else if (closed) {
      again(RETRY);
    }
  });
  alive();
}

// An ended run may be started again, here or elsewhere.
async function watchAgain() {
  const page = await update();
  if (page && !page.ended) {
    watch();
  } else {
    setTimeout(watchAgain, 5 * RETRY);
  }
}

// The arrow keys go through the parts of a chart's axis.
document.addEventListener("keydown", (event) => {
  const chart = document.activeElement.closest("[data-bins]");
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!chart || !step) {
    return;
  }
  const bins = [...chart.querySelectorAll(".bins a")];
  const at = bins.indexOf(document.activeElement);
  bins[at < 0 && step < 0 ? bins.length - 1 : Math.min(Math.max(at + step, 0), bins.length - 1)].focus();
  event.preventDefault();
});

if (name) {
  watch();
  // No event tells that the process which worked on the run has died.
  setInterval(() => { if (!document.hidden) { soon(0); } }, 5 * RETRY);
} else {
  setInterval(() => { if (!document.hidden) { soon(0); } }, RETRY);
}
