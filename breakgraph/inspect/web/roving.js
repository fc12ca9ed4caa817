// One stop of the Tab key for a group; the arrow keys move within it (ARIA Authoring Practices, roving tabindex).

function roving(items, current = 0) {
  const focusable = (at) => items.forEach((item, place) => item.setAttribute("tabindex", place === at ? 0 : -1));
  focusable(current);
  items.forEach((item, at) => {
    item.addEventListener("focus", () => focusable(at));
    item.addEventListener("keydown", (event) => {
      const target = {
        ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: items.length - 1,
      }[event.key];
      if (target === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      items[Math.min(Math.max(target, 0), items.length - 1)].focus();
    });
  });
  return focusable;
}

// What an SVG group needs to be a button.
function pressable(group, label, action) {
  group.setAttribute("role", "button");
  group.setAttribute("aria-label", label);
  group.addEventListener("click", action);
  group.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    action(event);
  });
  return group;
}
