// Shows the settings of a step as soon as another type is chosen. Without this script, they are shown after saving.
document.addEventListener("change", async ({ target }) => {
  const choice = /^(?:(.*)-)?(?:runs|as_json)$/.exec(target.name ?? "");
  const place = choice && target.closest(".inline-related, form").querySelector("[data-settings]");
  if (!place) return;
  const data = new FormData(target.form);
  data.set("prefix", choice[1] ?? "");
  const answer = await fetch(place.dataset.settings, { method: "POST", body: data });
  if (!answer.ok) return;
  place.innerHTML = await answer.text();
  document.getElementById(target.id)?.focus();
});
