// Before anything is drawn, so that a dark page does not flash. Runs as an ordinary script.
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("monarch.theme"); } catch { /* storage is switched off */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
