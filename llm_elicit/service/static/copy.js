"use strict";
// A button copies the text of a field; without the clipboard's permission the text is selected.

for (const button of document.querySelectorAll("[data-copies]")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const field = document.getElementById(button.dataset.copies);
    const result = document.getElementById("copied");
    try {
      await navigator.clipboard.writeText(field.value);
      result.textContent = "Copied.";
    } catch {
      field.focus();
      field.select();
      result.textContent = "Selected: copy it with the keyboard.";
    }
  });
}
