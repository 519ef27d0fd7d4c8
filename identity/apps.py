from __future__ import annotations

from datetime import timedelta

from django.apps import AppConfig

# The permission to see each kind of record. Identities and accounts are personal data.
VIEW_IDENTITY = "identity.view_identity"
RECORDS = {
    "identity": VIEW_IDENTITY,
    "account": VIEW_IDENTITY,
    "pendingexport": VIEW_IDENTITY,
    "connectedsystem": "identity.view_connectedsystem",
    "identitytype": "identity.view_connectedsystem",
    "runprofile": "identity.view_connectedsystem",
    "syncrule": "identity.view_syncrule",
}


class IdentityConfig(AppConfig):
    name = "identity"
    default_auto_field = "django.db.models.BigAutoField"
    verbose_name = "Identity"

    def ready(self) -> None:
        from activities.models import PERSONAL, RESTRICTED
        from execution.loops import housekeeping
        from execution.steps.step_type import register

        from .connectors import connector
        from .connectors.csv_connector import CsvConnector
        from .housekeeping import delete_due_identities
        from .steps import ClearSystemStep, DeleteSystemStep, GenerateDataStep, RunProfileStep

        for step_type in (RunProfileStep, GenerateDataStep, ClearSystemStep, DeleteSystemStep):
            register(step_type)
            PERSONAL[step_type.name] = VIEW_IDENTITY
        connector.register(CsvConnector)
        RESTRICTED.update(RECORDS)
        housekeeping.register("identities", every=timedelta(seconds=60), once=delete_due_identities)
