// Takes over the theme of the Airflow that frames this page, before anything is painted, and whenever it is switched.
(() => {
  "use strict";
  const root = document.documentElement;
  // Our colours, and Airflow's names of those that it has.
  const TAKEN = { bg: "bg", card: "bg-panel", soft: "bg-muted", line: "border", ink: "fg", quiet: "fg-muted" };
  const parentRoot = () => {
    try {
      return window.parent === window ? null : window.parent.document.documentElement;
    } catch {
      return null;
    }
  };
  const chosen = () => {
    const framed = parentRoot();
    for (const theme of ["dark", "light"]) if (framed && framed.classList.contains(theme)) return theme;
    try {
      const kept = window.localStorage.getItem("theme");
      if (kept === "dark" || kept === "light") return kept;
    } catch {
      // Storage may be barred; the system's preference is left.
    }
    return window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  };
  const apply = () => {
    root.dataset.theme = chosen();
    const framed = parentRoot();
    if (!framed) return;
    const around = window.parent.getComputedStyle(framed);
    for (const [own, theirs] of Object.entries(TAKEN)) {
      const colour = around.getPropertyValue(`--chakra-colors-${theirs}`);
      if (colour) root.style.setProperty(`--${own}`, colour);
    }
  };
  apply();
  // The parent changes its class after it has changed the storage.
  window.addEventListener("storage", () => window.setTimeout(apply, 50));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
  const framed = parentRoot();
  if (framed) {
    const seen = new MutationObserver(apply);
    seen.observe(framed, { attributes: true, attributeFilter: ["class", "data-theme"] });
    window.addEventListener("pagehide", () => seen.disconnect());
  }
})();
