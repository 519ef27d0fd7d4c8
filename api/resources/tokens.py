"""API tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from django.urls import reverse
from django.utils.decorators import method_decorator
from django.views.decorators.debug import sensitive_variables
from django_filters import rest_framework as filters
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers, status
from rest_framework.decorators import action
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.response import Response

from api.filtering import Filters, TextFilter
from api.models import ApiToken, ApiTokenQuerySet
from api.permissions import can
from api.reading import Nothing, Strict
from api.schema import created, performed
from api.scopes import SCOPES
from database import clock
from schedules.models import Refused

from .base import ListedResource

STATES = ("active", "expired", "revoked")
VIEW = "api.view_apitoken"


class TokenAccess(BasePermission):
    """Access for users with a browser session, and for tokens with the scope “admin”."""

    message = "To manage tokens, use a token with the scope “admin” or a signed-in browser session."

    def has_permission(self, request: Request, view: Any) -> bool:
        if not request.user.is_authenticated:
            return False
        return not isinstance(request.auth, ApiToken) or request.auth.allows(VIEW)


class TokenSerializer(serializers.ModelSerializer[ApiToken]):
    user = serializers.CharField(source="user.username")
    scopes = serializers.ListField(child=serializers.ChoiceField(choices=list(SCOPES)))
    state = serializers.SerializerMethodField()

    class Meta:
        model = ApiToken
        fields: tuple[str, ...] = (
            "id",
            "name",
            "user",
            "prefix",
            "scopes",
            "state",
            "created_at",
            "expires_at",
            "last_used_at",
            "revoked_at",
        )
        read_only_fields: tuple[str, ...] = fields
        extra_kwargs = {
            "prefix": {
                "help_text": "The first characters of the token after `jim_`, by which you can recognise the "
                "token."
            }
        }

    @extend_schema_field(serializers.ChoiceField(choices=STATES))
    def get_state(self, token: ApiToken) -> str:
        return token.state(clock.now())


class CreatedTokenSerializer(TokenSerializer):
    text = serializers.CharField(
        help_text="The token itself, which you send as `Authorization: Bearer …`. It is included only in "
        "this response."
    )

    class Meta(TokenSerializer.Meta):
        fields = (*TokenSerializer.Meta.fields, "text")
        read_only_fields: tuple[str, ...] = fields


class NewToken(Strict[Any]):
    name = serializers.CharField(max_length=100, help_text="A name that says what the token is used for.")
    scopes = serializers.ListField(child=serializers.ChoiceField(choices=list(SCOPES)), min_length=1)
    expires_at = serializers.DateTimeField(
        allow_null=True,
        default=None,
        help_text="When the new token expires. If null, the new token expires at the same time as the token "
        "used for this request. If that token never expires, or if you use a browser session instead, the "
        "new token never expires.",
    )


class TokenFilters(Filters):
    user = TextFilter(field_name="user__username")
    state = filters.ChoiceFilter(choices=[("active", "active"), ("ended", "ended")], method="in_state")

    def in_state(self, rows: ApiTokenQuerySet, name: str, value: str) -> ApiTokenQuerySet:
        living = rows.living(clock.now())
        return living if value == "active" else rows.exclude(pk__in=living.values("pk"))


class Tokens(ListedResource):
    """List your API tokens.

    Administrators see the tokens of all users.
    """

    queryset = ApiToken.objects.all()
    serializer_class = TokenSerializer
    filterset_class = TokenFilters
    permission_classes = (TokenAccess,)
    lookup_value_regex = "[0-9]{1,18}"
    orderings = ("-id", "id")
    # These permissions are needed only for the tokens of other users.
    needs: ClassVar[Mapping[str, str]] = {
        "list": VIEW,
        "retrieve": VIEW,
        "create": "api.add_apitoken",
        "revoke": "api.change_apitoken",
    }

    def get_queryset(self) -> Any:
        rows = ApiToken.objects.select_related("user")
        sees_all = can(self.request, self.needs[self.action])
        return rows if sees_all else rows.filter(user=self.request.user.pk)

    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Retrieve the details of a token, but not the token itself."""
        return super().retrieve(request, *args, **kwargs)

    @extend_schema(request=NewToken, responses=created(CreatedTokenSerializer))
    @method_decorator(sensitive_variables())
    def create(self, request: Request) -> Response:
        """Create a token for yourself.

        The token itself (`text`) is included only in this response. If you use a token for this request, the
        new token expires no later than that token. When that token is revoked, so is the new token.
        Idempotency keys are not supported, because the response is not stored.
        """
        user: Any = request.user
        parent = request.auth if isinstance(request.auth, ApiToken) else None
        token, text = ApiToken.objects.issue(
            **self.read(NewToken), user=user, initiator=self.by, now=self.now, parent=parent
        )
        url = reverse("api:token-detail", args=[token.pk])
        made = self.respond_with(token, code=status.HTTP_201_CREATED, url=url)
        made.data = {**made.data, "text": text}
        return made

    @extend_schema(request=Nothing, responses=performed(TokenSerializer))
    @action(detail=True, methods=["post"])
    def revoke(self, request: Request, pk: str) -> Response:
        """Revoke a token and all tokens created with it."""
        token, _ = self.get_object(), self.read(Nothing)
        if not token.revoke(initiator=self.by, now=self.now):
            raise Refused(f"“{token}” was already revoked.")
        return self.respond_with(token)
