"""The base classes of all resources. Resources only read requests and call methods of the models."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Any, ClassVar

from django.db.models import QuerySet
from rest_framework import mixins, status
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from api import idempotency
from api.authentication import initiator_of
from api.filtering import OF_PAGES, WordsFilter, refuse_unknown
from api.permissions import can
from api.reading import Strict
from api.versions import check_match, check_match_if_given, etag, is_unmodified
from database import clock
from operations.initiator import Initiator
from text.clean import clean_text


class Resource(GenericViewSet[Any]):
    """A view set that refuses unknown parameters and supports versions (ETags) and idempotency keys."""

    # The permission that each action needs; an action that is missing here cannot be called.
    needs: ClassVar[Mapping[str, str]]
    # The orderings of the list, with the default first. Each must be unique or nearly unique.
    orderings: ClassVar[tuple[str, ...]] = ("-id",)
    # The query parameters of actions other than the list.
    parameters: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    # The query parameters that can be given several times.
    repeatable: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    http_method_names = ("get", "post", "put", "patch", "delete", "head")

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if self.action:
            refuse_unknown(request, self._known_parameters(), many=self._repeatable())
        if request.method == "POST":
            idempotency.key_of(request)
        if not all(clean_text(text) == text for text in self.kwargs.values()):
            raise NotFound

    @property
    def by(self) -> Initiator:
        return initiator_of(self.request)

    @property
    def now(self) -> datetime:
        return clock.now()

    def read(
        self, serializer: type[Strict[Any]], body: Any = None, *, partial: bool = False
    ) -> dict[str, Any]:
        """Return the validated request body, or raise a ValidationError with the errors by field."""
        data = self.request.data if body is None else body
        given = serializer(data=data, partial=partial, context=self.get_serializer_context())
        given.is_valid(raise_exception=True)
        return dict(given.validated_data)

    def editable_body(self, *, read_only: Collection[str]) -> dict[str, Any]:
        """Return the request body without the `read_only` fields, which clients may send but not change."""
        return {name: value for name, value in dict(self.request.data).items() if name not in read_only}

    def may(self, permission: str) -> bool:
        """Return whether the user and, if one was sent, the token have a permission."""
        return can(self.request, permission)

    def once(self, act: Callable[[], Response]) -> Response:
        """Carry out an action, or return the stored response if the Idempotency-Key was used before."""
        key = idempotency.key_of(self.request)
        return idempotency.once(self.request, key, act) if key else act()

    def previous_response(self) -> Response | None:
        """Return the stored response, or None. Call this before `once` if the action is slow to prepare."""
        key = idempotency.key_of(self.request)
        return idempotency.previous_response(self.request, key) if key else None

    def respond_with(
        self, row: Any, *, version: object = None, code: int = status.HTTP_200_OK, url: str = ""
    ) -> Response:
        """Return a response with the serialized object `row`. If the object is new, `url` is its address.

        With a `version`, the response has an ETag, and a GET returns 304 if the client already has this
        response.
        """
        data = self.get_serializer(row).data
        headers = {"Location": self.request.build_absolute_uri(url)} if url else {}
        if version is not None:
            headers["ETag"] = etag(version, data)
            if self.request.method == "GET" and is_unmodified(self.request, headers["ETag"]):
                return Response(status=status.HTTP_304_NOT_MODIFIED, headers=headers)
        return Response(data, status=code, headers=headers)

    def accepted(self, body: Mapping[str, Any], *, url: str) -> Response:
        """Return a 202 response with this body and the URL at which the client can follow the progress."""
        link = self.request.build_absolute_uri(url)
        return Response({**body, "url": link}, status=status.HTTP_202_ACCEPTED, headers={"Location": link})

    def check_version(self, version: object) -> None:
        check_match(self.request, version)

    def check_version_if_given(self, version: object) -> bool:
        return check_match_if_given(self.request, version)

    def _repeatable(self) -> list[str]:
        filterset = getattr(self, "filterset_class", None) if self.action == "list" else None
        given = filterset.base_filters if filterset else {}
        words = [name for name, each in given.items() if isinstance(each, WordsFilter)]
        return [*words, *self.repeatable.get(str(self.action), ())]

    def _known_parameters(self) -> list[str]:
        if self.action != "list":
            return list(self.parameters.get(str(self.action), ()))
        known = list(OF_PAGES if len(self.orderings) > 1 else OF_PAGES[:2]) if self.paginator else []
        filterset = getattr(self, "filterset_class", None)
        return [*known, *(filterset.base_filters if filterset else ()), *self.parameters.get("list", ())]


class ListedResource(mixins.ListModelMixin, Resource):
    """A resource with a list of objects and a response for each single object."""

    # The serializer of the rows of the list, if it differs from that of a single object.
    row_class: ClassVar[Any] = None

    def get_serializer_class(self) -> Any:
        is_row = self.row_class and self.action == "list"
        return self.row_class if is_row else super().get_serializer_class()

    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Retrieve one object."""
        row = self.get_object()
        return self.respond_with(row, version=self.version_of(row))

    def version_of(self, row: Any) -> object:
        return None

    def locked(self, rows: QuerySet[Any]) -> Any:
        """Return the requested object from `rows`, which must be a queryset that locks.

        Raise an error if If-Match is missing or outdated.
        """
        self.queryset = rows  # type: ignore[arg-type]
        row = self.get_object()
        self.check_version(self.version_of(row))
        return row
