"""The host's own routes, one router per module, included after the plugins'."""
