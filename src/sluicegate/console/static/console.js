// Refreshing by htmx: not in a hidden tab, nor while the focus or a selection is inside the table.
// Without this script the pages work, and are refreshed by the browser's own button.
"use strict";
const button = document.getElementById("refresh");
if (button) {
  const fresh = document.getElementById("fresh");
  const news = document.getElementById("news");
  const isOn = () => button.getAttribute("aria-pressed") === "true";
  const isHeld = (live) =>
    live.contains(document.activeElement) && document.activeElement.matches("input, select, a, button");
  button.hidden = false;
  button.addEventListener("click", () => button.setAttribute("aria-pressed", String(!isOn())));
  document.body.addEventListener("htmx:beforeRequest", (event) => {
    if (document.hidden || !isOn() || isHeld(event.target) || !getSelection().isCollapsed) {
      event.preventDefault();
    }
  });
  const fail = () => {
    const live = document.getElementById("live");
    fresh.textContent = news.textContent = `Not refreshed since ${live.dataset.at} UTC`;
  };
  document.body.addEventListener("htmx:sendError", fail);
  document.body.addEventListener("htmx:responseError", fail);
  document.body.addEventListener("htmx:beforeSwap", (event) => {
    const live = document.getElementById("live");
    const page = new DOMParser().parseFromString(event.detail.xhr.responseText, "text/html");
    const next = page.getElementById("live");
    if (!next) {
      event.detail.shouldSwap = false;
      fail();
      return;
    }
    fresh.textContent = `As of ${next.dataset.at} UTC`;
    if (next.dataset.news !== live.dataset.news) news.textContent = next.dataset.news;
  });
}
