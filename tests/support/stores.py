"""What an MLflow store of a project holds, asked of its tables."""

import sqlite3

from daypoint.record import identity


def rows(project, statement, *values):
    """Rows of the project's MLflow store."""
    connection = sqlite3.connect(f"file:{project.store}?mode=ro", uri=True)
    try:
        return connection.execute(statement, values).fetchall()
    finally:
        connection.close()


def mlflow_run(project, directory):
    """(run uuid, status) of the MLflow run of a run directory."""
    uid = identity.read_run(directory)["uid"]
    (found,) = rows(
        project,
        "SELECT r.run_uuid, r.status FROM runs r JOIN tags t ON t.run_uuid = r.run_uuid "
        "WHERE t.key = 'daypoint.uid' AND t.value = ?",
        uid,
    )
    return found
