"""Files of llama.cpp, by whatever binding is installed."""


class TextLlama:
    version, interface, user, bot = 100, ":", "User", "Assistant"

    def __init__(self, path):
        from llama_cpp import Llama as Binding

        self.name, self.binding = path, Binding(path)

    def generate(self, body, prompt, stop=None, stop_token_ids=None):
        text = ""
        for count, item in enumerate(self.binding.create_completion(prompt=prompt), 1):
            delta = item["choices"][0]["text"]
            text += delta
            yield "text", text, delta, 0, count


def Llama(model_path, strategy):
    return TextLlama(model_path)
