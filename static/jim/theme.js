// Before anything is drawn, so that nothing flashes. The admin keeps its choice in the same place.
document.documentElement.dataset.theme = localStorage.getItem("theme") || "auto";
