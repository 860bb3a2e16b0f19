"""Stub until names arrive."""


class Names:
    def __init__(self, function, leaves):
        self.never_constant = None

    def changed_during(self):
        return None

    def test(self):
        return lambda leaves: True

    def changed(self, leaves):
        return None

    def known(self, leaves):
        return {}
