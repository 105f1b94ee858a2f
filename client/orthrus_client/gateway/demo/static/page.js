// The page: asks the gateway and shows what it answers. All that comes from outside is put in as text, never as markup.

const KINDS = { embed: "texts and queries", prefill: "prompts", decode: "answers" };
const SECONDS = 60;
const RETRY_MS = 3000;
const KEY = "orthrus-api-key";
const NO_KEY = "The gateway asks for an API key.";

const byId = (id) => document.getElementById(id);
const form = byId("form");
const question = byId("question");
const file = byId("file");
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const numbers = new Intl.NumberFormat("en");

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// ---- the gateway -------------------------------------------------------------------------------------------------

/** Fetches, with the key if there is one; asks for it when it is missing or wrong. Throws what went wrong as text. */
async function request(path, options = {}, { mayAskForKey = true } = {}) {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    const headers = { ...options.headers, ...(key && { Authorization: `Bearer ${key}` }) };
    let answer;
    try {
      answer = await fetch(path, { ...options, headers });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Error("The gateway does not answer.");
    }
    if (answer.ok) return answer;
    if (answer.status !== 401) throw new Error(await explanation(answer));
    if (!mayAskForKey) throw new Error(NO_KEY);
    if (key === sessionStorage.getItem(KEY)) await askForKey(key !== null);
  }
}

async function explanation(answer) {
  const body = await answer.json().catch(() => null);
  return body?.error?.message ?? `The gateway answers with status ${answer.status}.`;
}

/** The events of a stream. EventSource would do, but can send neither a body nor a key. */
async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      buffer += value;
      const blocks = buffer.split("\n\n");
      buffer = blocks.pop();
      for (const block of blocks) {
        const event = { name: "message", data: "" };
        for (const line of block.split("\n")) {
          if (line.startsWith("event: ")) event.name = line.slice(7);
          if (line.startsWith("data: ")) event.data += line.slice(6);
        }
        yield { name: event.name, ...JSON.parse(event.data || "{}") };
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

// ---- the key -----------------------------------------------------------------------------------------------------

let keyAsked = null;

/** Resolves when there is a key to try; all that wait share one dialog. */
function askForKey(wasWrong) {
  keyAsked ??= new Promise((resolve, reject) => {
    const dialog = byId("key-dialog");
    byId("key-hint").textContent = wasWrong
      ? "This key is not the right one. It is kept in this tab only."
      : "This gateway asks for a key. It is kept in this tab only.";
    byId("key").value = "";
    dialog.returnValue = "";
    byId("key-form").onsubmit = () => {
      sessionStorage.setItem(KEY, byId("key").value.trim());
      dialog.close("key");
    };
    byId("key-cancel").onclick = () => dialog.close();
    dialog.onclose = () => {
      keyAsked = null;
      if (dialog.returnValue === "key") resolve();
      else reject(new Error(NO_KEY));
    };
    dialog.showModal();
  });
  return keyAsked;
}

// ---- a question --------------------------------------------------------------------------------------------------

let running = null; // AbortController of the question that is being answered
let uploaded = null; // { file, id }

async function ask() {
  if (running || !form.reportValidity()) return;
  const control = (running = new AbortController());
  const text = question.value.trim();
  setRunning(true);
  problem("");
  byId("answers").hidden = true;
  byId("cards").replaceChildren();
  byId("asked").textContent = text;
  const started = performance.now();
  try {
    if (!described) await describe();
    const body = JSON.stringify({
      question: text,
      corpus: await corpus(control.signal),
      rounds: byId("rounds").valueAsNumber,
      documents: byId("documents").valueAsNumber,
      max_tokens: byId("max-tokens").valueAsNumber,
    });
    say("Asking");
    const headers = { "Content-Type": "application/json" };
    const answer = await request("/demo/ask", { method: "POST", body, headers, signal: control.signal });
    await show(answer, text, byId("rounds").valueAsNumber);
    say(`Answered in ${seconds((performance.now() - started) / 1000)}`);
  } catch (error) {
    if (error.name === "AbortError") say("Stopped");
    else problem(error.message);
  } finally {
    for (const card of document.querySelectorAll(".working")) settle(card);
    running = null;
    setRunning(false);
  }
}

async function show(answer, asked, rounds) {
  let card = null;
  let ended = false;
  for await (const event of events(answer)) {
    byId("progress").hidden = event.name !== "progress";
    switch (event.name) {
      case "progress":
        byId("progress").value = event.done / event.total;
        say(`Embedding the documents: ${event.done} of ${event.total}`);
        break;
      case "round":
        card = cardOf(event, asked);
        byId("cards").append(card.article);
        if (byId("answers").hidden) {
          byId("answers").hidden = false;
          byId("actions").scrollIntoView({ behavior: calm.matches ? "auto" : "smooth" });
        }
        say(`Round ${event.round} of ${rounds}: ${event.documents.length} documents found, writing`);
        break;
      case "text":
        card.text.append(event.text);
        break;
      case "answer":
        card.text.textContent = event.text;
        card.numbers.append(
          `, writing ${seconds(event.generate_seconds)} (${event.num_input_tokens} tokens read, ` +
            `${event.num_output_tokens} written, ${ending(event.finish_reason)})`,
        );
        settle(card.article);
        say(`${card.title.textContent}: ${event.text}`);
        break;
      case "done":
        ended = true;
        break;
      case "error":
        throw new Error(event.message);
    }
  }
  if (!ended) throw new Error("The answer broke off: the gateway has closed the connection.");
}

function cardOf(event, asked) {
  const title = element("h3", { textContent: `Round ${event.round}` });
  const query = element("p", { textContent: event.query });
  if (event.query !== asked && event.query.startsWith(asked)) {
    const added = element("span", { className: "added", textContent: event.query.slice(asked.length).trim() });
    added.title = "the answer of the round before";
    query.replaceChildren(`${asked} `, added);
  }
  const found = event.documents.map((hit) =>
    element(
      "li",
      {},
      element("span", { className: "score", textContent: hit.score.toFixed(2), title: "cosine similarity" }),
      element("div", {}, element("span", { className: "name", textContent: hit.id }), ` ${hit.text}`),
    ),
  );
  const text = element("p", { className: "text" });
  const timing = `Embedding the query ${seconds(event.embed_seconds)}, searching ${seconds(event.search_seconds)}`;
  const shown = element("p", { className: "numbers quiet", textContent: timing });
  const article = element(
    "article",
    { className: "card working" },
    title,
    element("h4", { textContent: "Query" }),
    query,
    element("h4", { textContent: `Documents found` }),
    element("ol", {}, ...found),
    element("h4", { textContent: "Answer" }),
    text,
    shown,
  );
  title.id = `round-${event.round}`;
  article.setAttribute("aria-labelledby", title.id);
  article.setAttribute("aria-busy", "true");
  return { article, title, text, numbers: shown };
}

function settle(article) {
  article.classList.remove("working");
  article.removeAttribute("aria-busy");
}

/** The id of what is asked over; a file goes up first, if it is not there yet. */
async function corpus(signal) {
  if (form.elements.source.value === "sample") return "sample";
  const chosen = file.files[0];
  if (uploaded?.file !== chosen) {
    say(`Sending ${chosen.name}`);
    const headers = { "Content-Type": "text/plain; charset=utf-8", "X-Document-Name": encodeURIComponent(chosen.name) };
    const answer = await request("/demo/documents", { method: "POST", body: chosen, headers, signal });
    uploaded = { file: chosen, ...(await answer.json()) };
  }
  return uploaded.id;
}

function setRunning(yes) {
  byId("ask").disabled = yes;
  byId("stop").disabled = !yes;
  if (!yes) byId("progress").hidden = true;
}

function say(text) {
  byId("status").textContent = text;
}

function problem(text) {
  byId("problem").textContent = text;
  byId("problem").hidden = !text;
  if (text) {
    say("");
    uploaded = null; // the gateway may not keep it any more
  }
}

function seconds(value) {
  return value < 0.1 ? `${(value * 1000).toFixed(value < 0.01 ? 1 : 0)} ms` : `${value.toFixed(2)} s`;
}

function ending(reason) {
  return { stop: "to its own end", length: "cut at the limit" }[reason] ?? reason;
}

// ---- the chart ---------------------------------------------------------------------------------------------------

const history = []; // { at: ms, seconds, tokens, steps }, oldest first
const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 600;
const HEIGHT = 120;

function draw() {
  const now = performance.now();
  while (history.length && now - history[0].at > SECONDS * 1000) history.shift();
  const rate = (interval, kind) => interval.tokens[kind] / interval.seconds;
  const total = (interval) => Object.keys(KINDS).reduce((sum, kind) => sum + rate(interval, kind), 0);
  const top = rounded(Math.max(10, ...history.map(total)));
  const shapes = [svg("line", { class: "grid", x1: 0, x2: WIDTH, y1: 0.5, y2: 0.5 })];
  shapes.push(svg("line", { class: "grid", x1: 0, x2: WIDTH, y1: HEIGHT / 2, y2: HEIGHT / 2 }));
  for (const interval of history) {
    const width = (WIDTH / SECONDS) * interval.seconds;
    const x = WIDTH - ((now - interval.at) / 1000) * (WIDTH / SECONDS) - width;
    let y = HEIGHT;
    for (const kind of Object.keys(KINDS)) {
      const height = (rate(interval, kind) / top) * HEIGHT;
      y -= height;
      if (height > 0) shapes.push(svg("rect", { class: kind, x: x + 0.75, y, width: width - 1.5, height }));
    }
  }
  byId("chart").replaceChildren(...shapes);
  byId("scale").textContent = `${numbers.format(top)} tokens/s`;
  const latest = history.at(-1);
  for (const kind of Object.keys(KINDS)) {
    byId(`rate-${kind}`).textContent = numbers.format(latest ? Math.round(rate(latest, kind)) : 0);
  }
  byId("load-summary").textContent = summary();
}

function summary() {
  const sum = (read) => history.reduce((total, interval) => total + read(interval), 0);
  const steps = (name) => sum((interval) => interval.steps[name]);
  const all = steps("embed") + steps("generate") + steps("mixed");
  if (!all) return "Nothing was computed in the last minute.";
  const parts = Object.entries(KINDS).map(
    ([kind, meaning]) => `${numbers.format(sum((interval) => interval.tokens[kind]))} ${kind} (${meaning})`,
  );
  return (
    `Tokens in the last minute: ${parts.join(", ")}. Steps: ${numbers.format(all)}, of which ` +
    `${numbers.format(steps("mixed"))} embedded and generated at once.`
  );
}

/** The next number of the form 1, 2 or 5 times a power of ten. */
function rounded(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((digit) => digit * power).find((candidate) => candidate >= value);
}

function svg(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

/** Follows the server for as long as the page can be seen. */
async function watch() {
  for (;;) {
    const control = new AbortController();
    const leave = () => document.hidden && control.abort();
    document.addEventListener("visibilitychange", leave);
    try {
      await visible();
      for await (const event of events(await load(control.signal))) {
        if (event.name === "unavailable") {
          history.length = 0;
          draw();
          byId("load-summary").textContent =
            "There is no chart: the gateway cannot read the server's metrics. Its option --metrics-url says where they are.";
        } else {
          if (event.seconds) history.push({ at: performance.now(), ...event });
          draw();
        }
      }
    } catch (error) {
      if (error.name !== "AbortError") {
        history.length = 0;
        draw();
        byId("load-summary").textContent = `There is no chart: ${error.message}`;
      }
    } finally {
      document.removeEventListener("visibilitychange", leave);
    }
    await wait(RETRY_MS);
  }
}

function load(signal) {
  return request("/demo/load", { signal }, { mayAskForKey: false });
}

function visible() {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
}

// ---- the start ---------------------------------------------------------------------------------------------------

let described = false;

async function describe() {
  const { models, sample, upload_bytes: bytes } = await (await request("/demo")).json();
  byId("models").textContent = `Served here: ${models.join(", ")}`;
  byId("sample-name").textContent = `${sample.documents} documents of ${sample.name}`;
  byId("file-hint").textContent = `(UTF-8, up to ${Math.floor(bytes / 1024)} KiB)`;
  const buttons = sample.questions.map((text) => {
    const button = element("button", { type: "button", textContent: text });
    button.addEventListener("click", () => {
      question.value = text;
      ask();
    });
    return button;
  });
  byId("examples").replaceChildren(...buttons);
  described = true;
}

function chooseSource() {
  const own = form.elements.source.value === "upload";
  byId("upload").hidden = !own;
  byId("examples").hidden = own;
  file.required = own;
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
question.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    ask();
  }
});
byId("stop").addEventListener("click", () => running?.abort());
for (const choice of form.elements.source) choice.addEventListener("change", chooseSource);
for (const [kind, meaning] of Object.entries(KINDS)) {
  const swatch = element("span", { className: `swatch ${kind}`, ariaHidden: "true" });
  const value = element("strong", { id: `rate-${kind}`, textContent: "0" });
  byId("legend").append(element("li", {}, swatch, `${kind} (${meaning}) `, value));
}
chooseSource();
draw();
describe()
  .catch((error) => problem(error.message))
  .then(watch);
