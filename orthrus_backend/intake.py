"""What callers send becomes engine requests: one way in for each kind, which share nothing but the model they may have
in common.
"""

from dataclasses import dataclass

from orthrus_backend.embed_intake import EmbedIntake
from orthrus_backend.generate_intake import GenerateIntake


@dataclass(frozen=True, slots=True)
class Intake:
    """Call `intake.generate(prompt, params)` or `intake.embed(text, params)`."""

    generate: GenerateIntake
    embed: EmbedIntake
