"""Sampling settings as the host knows them: the body of ``/update-config``, merging, and a model's own defaults."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool

# Setting of a request -> attribute of a model object.
ATTRIBUTES = {
    "max_tokens": "max_tokens_per_generation",
    "temperature": "temperature",
    "top_p": "top_p",
    "presence_penalty": "penalty_alpha_presence",
    "frequency_penalty": "penalty_alpha_frequency",
    "penalty_decay": "penalty_decay",
    "top_k": "top_k",
    "global_penalty": "global_penalty",
}


# The same for a setting and for one request, under either of its names.
MAX_TOKENS = 102_400


class ModelConfigBody(BaseModel):
    """Settings with the host's limits; null and absent both mean "not set"."""

    # Strict: a number in quotes is refused, as the OpenAPI document says.
    model_config = ConfigDict(allow_inf_nan=False, strict=True)

    max_tokens: int | None = Field(default=None, gt=0, le=MAX_TOKENS)
    temperature: float | None = Field(default=None, ge=0, le=3)
    top_p: float | None = Field(default=None, ge=0, le=1)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    penalty_decay: float | None = Field(default=None, ge=0.99, le=0.999)
    top_k: int | None = Field(default=None, ge=0, le=100)
    global_penalty: StrictBool | None = Field(default=None, description="Count the prompt's tokens for the penalties too.")
    state: str | None = Field(default=None, description="State-tuned file; an empty string takes it away.")

    def settings(self) -> dict[str, Any]:
        """The keys that were set."""
        return {name: value for name in ModelConfigBody.model_fields if (value := getattr(self, name)) is not None}


class SettingsBody(ModelConfigBody):
    """The body of ``/update-config``: settings alone, so that a name that is spelled wrong is told."""

    model_config = ConfigDict(extra="forbid")


def model_settings(model: object) -> dict[str, Any]:
    """A model's own settings, checked against the limits. Raises ValueError that names what is out of range."""
    values = {name: getattr(model, attribute) for name, attribute in ATTRIBUTES.items() if hasattr(model, attribute)}
    return ModelConfigBody(**values).settings()


def apply_settings(model: object, settings: dict[str, Any]) -> None:
    """Write settings to the model's attributes, as the locked path does before each generation."""
    for name, attribute in ATTRIBUTES.items():
        if name in settings and hasattr(model, attribute):
            setattr(model, attribute, settings[name])
