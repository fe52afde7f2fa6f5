"""Numbers in the paths of routes.

Starlette's own converter `int` fails on a number that is too long for Python, before a handler could answer.
"""

from starlette.convertors import IntegerConvertor, register_url_convertor

NUMBER = "number"
"""The converter of a number of up to 9 digits. A path with more belongs to no route: 404, as in Pulsar."""


class _NumberConvertor(IntegerConvertor):
    regex = "[0-9]{1,9}"


register_url_convertor(NUMBER, _NumberConvertor())
