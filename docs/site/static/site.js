// What is wider than its place can be scrolled by keyboard, too: it is reached by the Tab key.
function reachWhatScrolls() {
  for (const box of document.querySelectorAll("pre, .table-wrapper, div.math")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}
addEventListener("load", reachWhatScrolls);
addEventListener("resize", reachWhatScrolls);
