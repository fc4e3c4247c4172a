"""What storage says when it fails is told in a sentence, with the connection to look at: answers of obstore, Lance and pyarrow."""

from __future__ import annotations

import pickle

import obstore
import pyarrow as pa
import pyarrow.fs
import pytest
from support.s3 import SECRET

from airflow_ckpt_provider.checkpoint.location import StorageLocation
from airflow_ckpt_provider.checkpoint.storage_problems import (
    StorageOptions,
    storage_failures_as_errors,
    storage_problem,
    without_structure,
)
from airflow_ckpt_provider.checkpoint.store import CheckpointStore, StoreError
from airflow_ckpt_provider.exceptions import InvalidInputError, RetryableError
from airflow_ckpt_provider.scan.lance import open_dataset

#: Nothing listens there.
CLOSED = "http://127.0.0.1:9"

NO_CREDENTIALS = [
    "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 969µs - HTTP error: error sending request",
    "Generic GCS error: Error performing token request: Error performing GET http://metadata.google.internal/computeMetadata/v1/x",
    'LanceError(IO): Failed: CredentialsNotLoaded(CredentialsNotLoaded { source: Some("no providers in chain") }), /a/aws.rs:66:20',
]


def answered(code, message="Told by the server."):
    return (
        "Generic S3 error: Error performing GET http://127.0.0.1/b?list-type=2 in 2ms - Server returned non-2xx status code: 400 "
        f'Bad Request: <?xml version="1.0" encoding="utf-8"?>\n<Error><Code>{code}</Code><Message>{message}</Message></Error>'
    )


@pytest.mark.parametrize("text", NO_CREDENTIALS)
def test_missing_credentials_are_called_so_and_no_address_of_a_metadata_service_is_shown(text):
    given = storage_problem(text, StorageOptions({}, "lake"))
    assert given is not None
    assert given.startswith("there are no credentials")
    assert given.endswith("Put them into the connection 'lake'.")
    assert "169.254" not in given
    none = storage_problem(text, StorageOptions({}, None, "lance_conn_id"))
    assert none is not None
    assert "name it with lance_conn_id=" in none


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("NoSuchBucket", "the bucket does not exist (NoSuchBucket: Told by the server). Create it, or correct the URI."),
        (
            "InvalidAccessKeyId",
            "the credentials are refused (InvalidAccessKeyId: Told by the server). Correct them in the connection 'c'.",
        ),
        ("SignatureDoesNotMatch", "the credentials are refused"),
        ("ExpiredToken", "the credentials are refused"),
        (
            "AccessDenied",
            "access is denied (AccessDenied: Told by the server). Allow these credentials to list, read, write and delete",
        ),
        ("PermanentRedirect", "the storage is in another region, or at another endpoint"),
        ("SlowDown", "it answers SlowDown: Told by the server."),
    ],
)
def test_the_answer_of_the_storage_is_told_with_its_own_words_and_what_to_do(code, said):
    told = storage_problem(answered(code), StorageOptions({}, "c"))
    assert told is not None
    assert told.startswith(said)
    assert "<" not in told


@pytest.mark.parametrize("status", [401, 403])
def test_an_answer_without_a_body_has_a_status(status):
    text = (
        f"Generic S3 error: Error performing HEAD http://h/b/x in 2ms - Server returned non-2xx status code: {status} Forbidden: "
    )
    assert str(status) in str(storage_problem(text))


@pytest.mark.parametrize("text", ["", "ValueError: no luck", "Dataset at path x was not found", "status code: 418"])
def test_what_is_not_known_of_storage_is_left_as_it_is(text):
    assert storage_problem(text) is None


def test_structure_for_the_authors_of_a_library_is_left_out():
    text = "LanceError(IO): Generic N/A error: the disk is tired, /home/runner/work/lance/rust/x.rs:6:1\n\nDebug source:\nGeneric {"
    assert without_structure(text) == "the disk is tired"
    assert len(without_structure("x" * 10_000)) < 500


def test_a_store_names_the_bucket_that_is_not_there(s3_bucket):
    options = StorageOptions(s3_bucket.options, "lake")
    with pytest.raises(StoreError) as failed:
        CheckpointStore(StorageLocation("s3://nobody-has-made-it/x", options)).check()
    assert str(failed.value) == (
        "Could not list the checkpoint store s3://nobody-has-made-it/x: the bucket does not exist (NoSuchBucket: The specified "
        "bucket does not exist). Create it, or correct the URI."
    )
    assert SECRET not in str(failed.value)


def test_a_store_that_nobody_answers_for_names_the_endpoint_and_the_connection(s3_bucket):
    options = StorageOptions({**s3_bucket.options, "endpoint": CLOSED}, "lake")
    with pytest.raises(StoreError, match=rf"nobody answers at {CLOSED}\. .* correct it in the connection 'lake'\.$"):
        CheckpointStore(StorageLocation("s3://bucket/x", options)).check()


def test_a_dataset_that_nobody_answers_for_names_the_endpoint_and_the_connection(s3_bucket):
    options = StorageOptions({**s3_bucket.options, "endpoint": CLOSED}, "lake")
    with pytest.raises(
        RetryableError, match=rf"d\.lance could not be opened: nobody answers at {CLOSED}\. .* connection 'lake'\.$"
    ):
        open_dataset("s3://bucket/d.lance", options)


def test_a_dataset_in_a_bucket_that_is_not_there_says_so(s3_bucket):
    with pytest.raises(RetryableError, match=r"s3://nobody-has-made-it/d\.lance could not be listed: the bucket does not exist"):
        open_dataset("s3://nobody-has-made-it/d.lance", s3_bucket.options)


def test_what_pyarrow_says_is_told_too():
    storage = pyarrow.fs.S3FileSystem(
        access_key="x", secret_key=SECRET, endpoint_override=CLOSED, region="us-east-1", connect_timeout=1,
        retry_strategy=pyarrow.fs.AwsStandardS3RetryStrategy(max_attempts=1),
    )  # fmt: skip
    said = r"^Storage failed: nobody answers\..* a retry goes on from there\.$"
    with pytest.raises(RetryableError, match=said) as failed, storage_failures_as_errors():
        storage.get_file_info("bucket/key")
    assert isinstance(failed.value.__cause__, OSError)


def test_failures_of_obstore_that_nobody_looked_after_become_errors_without_structure(s3_bucket):
    store = StorageLocation("s3://nobody-has-made-it/x", s3_bucket.options).open()
    with pytest.raises(RetryableError, match=r"^Storage failed: the bucket does not exist") as failed, storage_failures_as_errors():
        list(obstore.list(store))
    assert "Debug source" not in str(failed.value)


@pytest.mark.parametrize(
    "error", [ValueError("mine"), OSError(28, "No space left on device"), pa.ArrowInvalid("bad"), KeyError("x")]
)
def test_errors_of_others_are_left_as_they_are(error):
    with pytest.raises(type(error)) as caught, storage_failures_as_errors():
        raise error
    assert caught.value is error


def test_an_error_of_this_package_is_left_as_it_is():
    error = InvalidInputError("Generic S3 error: said by us")
    with pytest.raises(InvalidInputError) as caught, storage_failures_as_errors():
        raise error
    assert caught.value is error


def test_options_travel_to_executors_with_the_name_of_their_connection():
    options = StorageOptions({"region": "x"}, "lake", "lance_conn_id")
    for other in (pickle.loads(pickle.dumps(options)), options.copy()):
        assert other == {"region": "x"}
        assert (other.conn_id, other.parameter) == ("lake", "lance_conn_id")
