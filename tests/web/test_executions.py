from __future__ import annotations

import pytest
from tests.admin_pages import sign_in
from tests.base import *
pytestmark = pytest.mark.django_db
def test_x() -> None:
    e = start(step("a", 0, "talk"), step("b", 1, "fail"), step("c", 2)); run_until_idle()
    f = start(step("a", 0, "talk"))
    c = sign_in()
    for url in ("/executions", "/queue", "/activities", f"/executions/{e.pk}", f"/executions/{f.pk}", f"/executions/{e.pk}/live", f"/activities/{e.activity_id}", f"/executions/{e.pk}/output.txt",
      *(f"/executions/{e.pk}?tab={t}" for t in ("output","items","data","audit")), f"/activities/{attempts(e,'a')[0].pk}", f"/activities/{attempts(f,'a')[0].pk}/live"):
        r = c.get(url); assert r.status_code == 200, url
