"""The RWKV-7 model. The only folder that imports torch at module level."""
