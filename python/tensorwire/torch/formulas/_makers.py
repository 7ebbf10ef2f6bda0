"""The formulas by the names of their operators. A file of a family puts its own here."""

from collections.abc import Callable
from typing import Any

Formula = Callable[..., Any]
#: Gives the formula for a use of an operator; none where the row has it. Of its arguments, by name, only constants have values.
Maker = Callable[[dict[str, Any]], Formula | None]

MAKERS: dict[str, Maker] = {}


def of(*operators: str, where: Callable[..., bool] | None = None) -> Callable[[Formula], Formula]:
    """Takes a function as the formula of operators, of all uses or of those of which ``where`` is true."""

    def taken(function: Formula) -> Formula:
        def made(arguments: dict[str, Any]) -> Formula | None:
            return function if where is None or where(**arguments) else None

        MAKERS.update(dict.fromkeys(operators, made))
        return function

    return taken


def several(given: Any, count: int) -> list[Any]:
    """Returns a number a side, where one may be given for all."""
    sides = list(given) if isinstance(given, (list, tuple)) else [given]
    return sides * count if len(sides) == 1 else sides
