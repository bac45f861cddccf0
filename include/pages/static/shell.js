// What all pages do: take Airflow's theme, leave the frame by links, show news without a reload, draw charts.
"use strict";

(() => {
  const framed = window.parent !== window;

  // Airflow keeps its theme as a class of its root element; both pages are of one origin.
  function theme() {
    try {
      if (framed) return window.parent.document.documentElement.classList.contains("dark") ? "dark" : "light";
      const kept = window.localStorage.getItem("theme");
      return kept === "dark" || kept === "light" ? kept : "";
    } catch {
      return "";
    }
  }

  function colour() {
    const wanted = theme();
    if (wanted) document.documentElement.dataset.theme = wanted;
    else delete document.documentElement.dataset.theme;
  }

  colour();
  try {
    if (framed) {
      new MutationObserver(() => {
        colour();
        charts();
      }).observe(window.parent.document.documentElement, { attributes: true, attributeFilter: ["class"] });
    }
  } catch {
    // another origin's frame: the theme of the system stays
  }

  // The frame may not navigate the window around it. A link of that window may.
  document.addEventListener("click", (event) => {
    const link = event.target instanceof Element ? event.target.closest("a[target=_top]") : null;
    if (!link || !framed) return;
    event.preventDefault();
    leave(link.href, event.ctrlKey || event.metaKey || event.shiftKey || !sameOrigin(link.href));
  });

  function sameOrigin(url) {
    return new URL(url, location.href).origin === location.origin;
  }

  function leave(url, apart) {
    if (!framed) {
      location.assign(url);
      return;
    }
    const link = window.parent.document.createElement("a");
    link.href = url;
    if (apart) link.target = "_blank";
    link.rel = "noopener";
    link.hidden = true;
    window.parent.document.body.append(link);
    link.click();
    link.remove();
  }

  // -- news

  let tag = "";
  let headline = "";
  let timer = 0;

  function say(text) {
    const status = document.getElementById("status");
    if (status && status.textContent !== text) status.textContent = text;
  }

  function announced() {
    const found = document.querySelector("#live [data-headline]");
    return found ? found.dataset.headline : "";
  }

  function plan(live) {
    const changed = live.querySelector("[data-every]");
    const seconds = Number((changed || live).dataset.every);
    window.clearTimeout(timer);
    if (seconds > 0) timer = window.setTimeout(() => news(live), seconds * 1000);
  }

  async function news(live) {
    if (document.hidden) {
      plan(live);
      return;
    }
    try {
      const answer = await fetch(live.dataset.live + location.search, {
        headers: tag ? { "If-None-Match": tag } : {},
        cache: "no-store",
        credentials: "same-origin",
      });
      if (answer.status === 401) {
        say("No news: the login has ended. Log in to Airflow again.");
      } else if (answer.status === 200) {
        tag = answer.headers.get("ETag") || "";
        replace(live, await answer.text());
      } else if (answer.status !== 304) {
        const refused = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("refusal");
        say("No news: " + (refused ? refused.textContent : "Airflow answered " + answer.status));
      }
    } catch {
      say("No news: Airflow does not answer.");
    }
    plan(live);
  }

  // Focus and what was opened stay where they are.
  function replace(live, html) {
    const focused = document.activeElement && live.contains(document.activeElement) ? document.activeElement.id : "";
    const open = [...live.querySelectorAll("details[open][id]")].map((one) => one.id);
    const parsed = new DOMParser().parseFromString(html, "text/html");
    live.replaceChildren(...parsed.body.childNodes);
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
    charts();
    const now = announced();
    if (now !== headline) say(now);
    headline = now;
  }

  document.addEventListener("visibilitychange", () => {
    const live = document.querySelector("[data-live]");
    if (live && !document.hidden) news(live);
  });

  // -- charts

  function charts() {
    if (!window.Plotly) return;
    const style = getComputedStyle(document.documentElement);
    const of = (name) => {
      const probe = document.createElement("span");
      probe.style.color = `var(${name})`;
      document.body.append(probe);
      const found = getComputedStyle(probe).color;
      probe.remove();
      return found;
    };
    const axis = { gridcolor: of("--line"), linecolor: of("--line"), zerolinecolor: of("--line"), automargin: true };
    const ground = {
      paper_bgcolor: of("--page"),
      plot_bgcolor: of("--page"),
      font: { color: of("--text"), family: style.fontFamily, size: 13 },
      margin: { l: 56, r: 16, t: 32, b: 48 },
    };
    for (const place of document.querySelectorAll(".chart[data-figure]")) {
      const figure = JSON.parse(place.dataset.figure);
      const layout = { ...ground, ...figure.layout };
      for (const name of new Set(["xaxis", "yaxis", ...Object.keys(layout).filter((key) => /^[xy]axis/.test(key))])) {
        layout[name] = { ...axis, ...layout[name] };
      }
      // on a narrow page the buttons would cover the legend
      const buttons = window.innerWidth < 700 ? { displayModeBar: false } : {};
      window.Plotly.react(place, figure.data, layout, { displaylogo: false, responsive: true, ...buttons });
    }
  }

  // -- starting a run

  async function start(form) {
    const answer = form.querySelector("output");
    const button = form.querySelector("button");
    const conf = {};
    for (const field of form.querySelectorAll("[data-kind]")) {
      if (field.dataset.kind === "boolean") conf[field.name] = field.checked;
      else if (field.dataset.kind === "json") conf[field.name] = JSON.parse(field.value);
      else if (field.dataset.kind === "whole") {
        if (field.value.trim()) conf[field.name] = Number(field.value);
      } else if (field.dataset.kind === "names") {
        const names = field.value.split(",").map((name) => name.trim()).filter(Boolean);
        if (names.length) conf[field.name] = names;
      }
      else if (field.value.trim()) conf[field.name] = field.value.trim();
    }
    button.disabled = true;
    answer.textContent = "Starting the run ...";
    await news(document.getElementById("live"));  // a DAG may have been paused since the page was drawn
    if (document.getElementById("refusal")) {
      answer.textContent = "Not started: see below.";
      button.disabled = false;
      return;
    }
    try {
      const reply = await fetch(form.getAttribute("action"), {  // a field may be called "action"
        method: "POST",
        headers: { "Content-Type": "application/json" },
        credentials: "same-origin",
        body: JSON.stringify({ logical_date: null, conf }),
      });
      const body = await reply.json();
      if (reply.ok) {
        answer.textContent = "Started.";
        leave(new URL(`${form.dataset.runs}/${encodeURIComponent(body.dag_run_id)}`, location.href).href, false);
        return;
      }
      const detail = typeof body.detail === "string" ? body.detail : JSON.stringify(body.detail);
      answer.textContent =
        reply.status === 403 ? "Not started: your role may not start this DAG." : "Not started: " + detail;
    } catch {
      answer.textContent = "Not started: Airflow does not answer.";
    }
    button.disabled = false;
  }

  // -- killing and resubmitting transfers: the first press counts them, the second one sends

  const MOST_CALLS = 20;  // a page of a list may have few rows and still a next one
  const chosen = new WeakMap();

  async function called(url, options) {
    const reply = await fetch(url, { credentials: "same-origin", cache: "no-store", ...options });
    const body = await reply.json();
    if (!reply.ok) throw new Error(body.hint ? `${body.message} Hint: ${body.hint}.` : body.message);
    return body;
  }

  async function listed(url, most) {
    const ids = [];
    let after = null;
    for (let calls = 0; calls < MOST_CALLS && ids.length < most; calls += 1) {
      const page = await called(after === null ? url : `${url}&after=${after}`);
      ids.push(...page.rows.map((row) => row.id));
      after = page.after;
      if (after === null) break;
    }
    return { ids: ids.slice(0, most), more: after !== null || ids.length > most };
  }

  // Cancel takes the place of the first button: a double click changes nothing.
  function settle(form, ids) {
    const [first, cancel, yes] = form.querySelectorAll("button");
    const focused = form.contains(document.activeElement);
    if (ids) chosen.set(form, ids);
    else chosen.delete(form);
    first.hidden = Boolean(ids);
    cancel.hidden = yes.hidden = !ids;
    if (focused) (ids ? cancel : first).focus();
  }

  async function change(form) {
    const answer = form.querySelector("output");
    const ids = chosen.get(form);
    if (form.dataset.busy) return;
    form.dataset.busy = "yes";
    try {
      if (ids) {
        settle(form, null);
        const done = await called(form.getAttribute("action"), {
          method: "POST",
          headers: { "Content-Type": "application/json" },
          body: JSON.stringify({ ids }),
        });
        answer.textContent = "Done: " + Object.entries(done).map(([what, files]) => `${files} ${what}`).join(", ") + ".";
        await news(document.querySelector("[data-live]"));
      } else {
        const found = form.dataset.list
          ? await listed(form.dataset.list, Number(form.dataset.most))
          : { ids: [Number(form.dataset.id)], more: false };
        const files = found.ids.length === 1 ? "1 transfer" : `${found.ids.length} transfers`;
        if (found.ids.length) settle(form, found.ids);
        answer.textContent = found.ids.length
          ? `${files}${found.more ? ", and there are more" : ""}. ${form.dataset.effect}`
          : "There is no such transfer.";
      }
    } catch (error) {
      settle(form, null);
      answer.textContent = "Not done: " + (error instanceof TypeError ? "Airflow does not answer." : error.message);
    }
    delete form.dataset.busy;
  }

  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!form.matches("form[data-runs], form.change")) return;
    event.preventDefault();
    if (form.matches(".change")) change(form);
    else start(form);
  });

  document.addEventListener("reset", (event) => {
    if (!event.target.matches("form.change")) return;
    settle(event.target, null);
    event.target.querySelector("output").textContent = "";
  });

  document.addEventListener("DOMContentLoaded", () => {
    const live = document.querySelector("[data-live]");
    headline = announced();
    charts();
    if (live) plan(live);
  });
})();
