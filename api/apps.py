from __future__ import annotations

from datetime import timedelta

from django.apps import AppConfig


class ApiConfig(AppConfig):
    name = "api"
    verbose_name = "API"

    def ready(self) -> None:
        from activities.models import RESTRICTED
        from execution.loops import housekeeping

        from .models import ApiToken, FailedSignIn, KeyedAnswer, Usage

        RESTRICTED["apitoken"] = "api.view_apitoken"
        RESTRICTED["failedsignin"] = "api.view_failedsignin"
        RESTRICTED["user"] = "auth.view_user"
        housekeeping.register("keyed answers", every=timedelta(hours=1), once=KeyedAnswer.objects.prune_old)
        housekeeping.register(
            "failed sign-ins", every=timedelta(hours=1), once=FailedSignIn.objects.prune_old
        )
        housekeeping.register("usage", every=timedelta(hours=1), once=Usage.objects.prune_old)
        housekeeping.register("tokens", every=timedelta(hours=6), once=ApiToken.objects.prune_old)
