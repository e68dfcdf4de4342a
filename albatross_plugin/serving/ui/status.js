export function mount(section) {}
