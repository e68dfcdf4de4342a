/** The tab Model: choosing a model and a device mode, loading and unloading. */

export function mount(section, app) {}
