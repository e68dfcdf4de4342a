"""The launcher: an unmodified RWKV-Runner with the plugins that are installed. The only folder that touches the Runner's modules."""
