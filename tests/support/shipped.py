"""A run sent to its store in this process."""

from daypoint.tracking import store
from daypoint.tracking.shipment import Shipment


def begin(run, uri=None):
    uri = uri or run.uri
    return Shipment.begin(run.directory, store.connect(uri), uri, store.artifact_root(uri, run.directory))


def ship(run, uri=None):
    """Send all of it; what MLflow has then."""
    with begin(run, uri) as shipment:
        while shipment.advance():
            pass
        shipment.finish()
        return store.connect(uri or run.uri).get_run(shipment.run_id)
