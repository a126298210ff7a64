"""Clusters of real processes. A module shares one, as long as its tests leave it whole."""

import pytest

import kudu_py as kudu
from kudu_py.testing.process_cluster import ProcessCluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with ProcessCluster(tmp_path_factory.mktemp("cluster") / "playground") as cluster:
        yield cluster


@pytest.fixture
def client(cluster):
    with kudu.connect(cluster.masters) as client:
        yield client
