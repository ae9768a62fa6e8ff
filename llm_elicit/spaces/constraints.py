"""Constraints of a feature space, which restrict points to a region of its box.

A constraint has one of two forms in YAML: a text with an inequality of two linear expressions, in
natural units, or a mapping that names two features and the corners of a polygon::

    constraints:
      - low_price <= high_price
      - 2 * bathrooms <= rooms + 1
      - {features: [Longitude, Latitude], polygon: [[-124, 42], [-120, 42], [-114, 35], [-117, 32]]}
"""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import Discriminator, Field, FiniteFloat, Tag, field_validator

from llm_elicit._util.packages import LazyModule
from llm_elicit._util.settings import StrictModel

if TYPE_CHECKING:
    from llm_elicit import density
    from llm_elicit.density.constraints import Constraint as DensityConstraint
else:
    density = LazyModule("llm_elicit.density")  # imports PyTorch, which only constraints need

Corner = tuple[FiniteFloat, FiniteFloat]
Linear = dict[str, float]
"""Coefficients by feature name; the empty name has the constant."""


class Polygon(StrictModel):
    """A polygon that two features lie in, natural units; its last corner is joined to the first."""

    features: tuple[str, str]
    polygon: Annotated[tuple[Corner, ...], Field(min_length=3)]

    @field_validator("features")
    @classmethod
    def _differ(cls, names: tuple[str, str]) -> tuple[str, str]:
        if names[0] == names[1]:
            raise ValueError(f"a polygon on {names[0]} alone; name two different features")
        return names


Constraint = Annotated[
    Annotated[str, Tag("inequality")] | Annotated[Polygon, Tag("region")],
    Discriminator(lambda value: "inequality" if isinstance(value, str) else "region"),
]


def density_constraint(constraint: Constraint, names: Sequence[str]) -> DensityConstraint:
    """Return a constraint on some of the features `names` in the form of the density core.

    Examples:
        >>> density_constraint("2 * low <= high - 1", ["low", "high"])
        LinearConstraint(coefficients=(2.0, -1.0), bound=-1.0)
    """
    if isinstance(constraint, Polygon):
        first, second = map(names.index, constraint.features)
        return density.PolygonConstraint((first, second), constraint.polygon)
    terms = inequality(constraint)
    return density.LinearConstraint([terms.get(n, 0.0) for n in names], -terms.get("", 0.0))


def feature_names(constraint: Constraint) -> tuple[str, ...]:
    """Return the names of the features in a constraint.

    Raises:
        ValueError: as `inequality`.

    Examples:
        >>> feature_names("low_price <= high_price")
        ('low_price', 'high_price')
    """
    if isinstance(constraint, Polygon):
        return constraint.features
    return tuple(name for name in inequality(constraint) if name)


def inequality(text: str) -> Linear:
    """Return the coefficients of left − right in `left <= right`; `>=` exchanges the sides.

    Raises:
        ValueError: not an inequality of two linear expressions, or it depends on no feature, as in
            `x <= x`.

    Examples:
        >>> inequality("rooms + 1 >= bedrooms / 2")
        {'bedrooms': 0.5, 'rooms': -1.0, '': -1.0}
    """
    remedy = 'write an inequality of linear expressions, such as "low_price <= high_price"'
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        if not isinstance(tree, ast.Compare) or len(tree.ops) != 1:
            raise ValueError("it is not a single inequality")
        lower, upper = _linear(tree.left), _linear(tree.comparators[0])
        if isinstance(tree.ops[0], ast.Gt | ast.GtE):
            lower, upper = upper, lower
        elif not isinstance(tree.ops[0], ast.Lt | ast.LtE):
            raise ValueError("neither <= nor >=")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ValueError(f"constraint {text!r}: {reason}; {remedy}") from None
    terms = _sum(lower, upper, -1.0)
    if not all(math.isfinite(value) for value in terms.values()):
        raise ValueError(f"constraint {text!r}: a number is too large; use larger units")
    if not any(value for name, value in terms.items() if name):
        raise ValueError(f"constraint {text!r}: it names no feature; remove it")
    return terms


def _linear(node: ast.expr) -> Linear:
    """Return the coefficients of an expression of sums, differences and multiples."""
    match node:
        case ast.Name():
            return {node.id: 1.0}
        case ast.Constant(value=int() | float() as number):
            return {"": float(number)}
        case ast.UnaryOp(op=ast.USub()):
            return _sum({}, _linear(node.operand), -1.0)
        case ast.BinOp():
            first, second = _linear(node.left), _linear(node.right)
            if isinstance(node.op, ast.Mult) and first.keys() == {""}:
                first, second = second, first
            constant = second[""] if second.keys() == {""} else None
            if isinstance(node.op, ast.Add | ast.Sub):
                return _sum(first, second, 1.0 if isinstance(node.op, ast.Add) else -1.0)
            if isinstance(node.op, ast.Mult) and constant is not None:
                return _sum({}, first, constant)
            if isinstance(node.op, ast.Div) and constant:
                return _sum({}, first, 1.0 / constant)
    raise ValueError(f"{ast.unparse(node)!r} is not linear in the features")


def _sum(a: Linear, b: Linear, factor: float) -> Linear:
    """Return a + factor · b."""
    return {name: a.get(name, 0.0) + factor * b.get(name, 0.0) for name in {**a, **b}}
