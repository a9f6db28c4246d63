"""The object storage store in the simulation: the real store, append loop and driver, on a simulated obstore and bucket.

The seam is the few functions of obstore that `clouds.py` calls (`link.py`). Behind it are a network that delays, holds back,
cuts and swallows, and a bucket (`server.py`) that stops, freezes, throttles, and honours conditional puts. `work.py` has the
clients and their calls; what must hold for them is in `tests/simulation/history.py`. OpenSearch shares the append loop
(`packed/log.py`), so that loop is covered for both.

One assumption: a delete that was sent takes effect within 20 seconds or never (`server.LATEST_DELETE`), because buckets have
no conditional delete that obstore offers. Puts may take effect at any later time.

Out of scope: obstore itself, HTTP and credentials, buckets that are not consistent, a process that is stopped for more than
an hour between a pack and its commit, the driver for OCI, and the documents of OpenSearch.
"""
