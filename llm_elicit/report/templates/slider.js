// Show a judge's figures at another power of its belief. Without this the saved power is shown.
for (const power of document.querySelectorAll(".power")) {
  const slider = power.querySelector("input");
  const said = power.querySelector("output");
  const words = power.dataset.words.split("|");
  const figures = power.closest(".figures");
  const show = () => {
    const step = slider.value;
    for (const part of figures.querySelectorAll("[data-step]"))
      part.classList.toggle("off", part.dataset.step !== step);
    for (const part of figures.querySelectorAll("[data-transforms]"))
      part.setAttribute("transform", part.dataset.transforms.split("|")[step]);
    slider.setAttribute("aria-valuetext", words[step]);
    said.textContent = words[step];
  };
  power.classList.remove("off");
  slider.addEventListener("input", show);
  show();
}
