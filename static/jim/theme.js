// Set the theme before the page is drawn, so that it does not flash. The admin stores the choice under the same key.
document.documentElement.dataset.theme = localStorage.getItem("theme") || "auto";
