"""The code with which a generation is gone on with: its header's, and what was accepted since. See the protocol page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.checkpoint import now
from airflow_ckpt_provider.checkpoint.documents import Code, Continue, code_of
from airflow_ckpt_provider.checkpoint.encoding import corrupt
from airflow_ckpt_provider.checkpoint.group import bound_group
from airflow_ckpt_provider.checkpoint.layout import id_of
from airflow_ckpt_provider.exceptions import BindingMismatchError, InvalidInputError

if TYPE_CHECKING:
    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.checkpoint.documents import Header


def codes(checkpoint: Checkpoint) -> list[Code]:
    """The code that was accepted since the generation was opened, in no order.

    :raises CorruptObjectError: if one is not what its name says.
    """
    names = checkpoint.store.names(checkpoint.paths.codes_folder)
    codes = checkpoint.store.read_many(names, Code)
    for name, code in zip(names, codes, strict=True):
        if code_of(code.fingerprint, code.version) != id_of(name):
            raise corrupt(name, f"is about other code, of the transform {code.transform!r}")
    return codes


def differs_in_code_only(header: Header, wanted: Header, *, told: bool) -> bool:
    """Whether what a header binds differs from what is wanted in the code of the transform and in nothing else.

    :param told: whether the stage is set to go on with other code.
    :raises BindingMismatchError: if it is, and only the transform differs, but is of another kind, or returns other types.
    """
    if not header.differs_in_code_only(wanted):
        return False
    if header.transform_kind != wanted.transform_kind and not told:
        return False
    if header.transform_kind != wanted.transform_kind:
        raise BindingMismatchError(
            f"The write of the key {header.key!r} cannot be gone on with: what is staged was computed by a transform of another "
            f'kind. It was {header.transform_kind}, and is {wanted.transform_kind} now. Set on_change="restart" on the stage and '
            "clear it, or use another idempotence key."
        )
    return True


def accept(checkpoint: Checkpoint, wanted: Header, *, told: bool) -> bool:
    """Accept the code of ``wanted`` for a generation, if it is allowed to go on with it.

    :param told: whether the stage says that it is.
    :returns: False if nobody says that it is.
    """
    if wanted.code == checkpoint.header.code or checkpoint.store.exists(checkpoint.paths.code(wanted.code)):
        return True
    request = None if told else _open_request(checkpoint)
    if not told and request is None:
        return False
    accepted = Code(
        transform=wanted.transform,
        fingerprint=wanted.transform_fingerprint,
        version=wanted.transform_version,
        accepted_at=now(),
        request=request,
    )
    checkpoint.store.create(checkpoint.paths.code(wanted.code), accepted)
    return True


def require_continuable(checkpoint: Checkpoint) -> None:
    """Refuse to go on with other code where no attempt could.

    :raises DiscardedError: if the generation was given up.
    :raises InvalidInputError: if it has no transform, or nothing is left to go on with.
    """
    checkpoint.require_live()
    if not checkpoint.header.transform:
        raise InvalidInputError(f"The write of the key {checkpoint.key.value!r} has no transform, whose code could have changed.")
    if checkpoint.committed() is not None or bound_group(checkpoint) is not None:
        raise InvalidInputError(f"A commit of the key {checkpoint.key.value!r} was begun: there is nothing left to go on with.")


def request_continuation(checkpoint: Checkpoint, requested_by: str) -> int:
    """Ask that the next attempt goes on with whatever code it has. Asking twice before that is asking once.

    :returns: number of the request.
    :raises InvalidInputError: as ``require_continuable``.
    """
    require_continuable(checkpoint)
    asked = _open_request(checkpoint)
    if asked is not None:
        return asked
    number = _requests(checkpoint) + 1
    checkpoint.store.create(checkpoint.paths.continuation(number), Continue(requested_at=now(), requested_by=requested_by))
    return number


def _requests(checkpoint: Checkpoint) -> int:
    number = 0
    while checkpoint.store.read(checkpoint.paths.continuation(number + 1), Continue) is not None:
        number += 1
    return number


def _open_request(checkpoint: Checkpoint) -> int | None:
    """The newest request, if no code was accepted for it."""
    number = _requests(checkpoint)
    return number if number and number not in {code.request for code in codes(checkpoint)} else None
