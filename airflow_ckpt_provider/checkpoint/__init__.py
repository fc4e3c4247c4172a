r"""The checkpoint protocol on one page. It knows neither Airflow, nor Spark, nor a table format.

A **checkpoint** is the durable record of one write, under one **idempotence key**, in the **checkpoint store**::

    <root>/<key hash>/g<generation>/
      header.json          what this generation is bound to            put-if-absent
      plan.json.zst        the pinned splits; plan-2 … of later rounds put-if-absent
      attempts/<id>.json   one execution; its id is in the name of every file it may write
      codes/<code>.json     other code than the header's that goes on       put-if-absent, before it stages anything
      continue/<n>.json     a request to go on with whatever code is next   put-if-absent
      pieces/<split>.<input>.<n>.json  what is done of a split that takes long put-if-absent; needed until it is staged
      ids/<split>-….parquet  ids of a split's rows, where a recovery is by rows; no name without its staged record
      rejected/<split>-….parquet  rows that the transform failed at; no name without the record of its split, or of a piece
      staged/<split>.json  the published record of one written split   put-if-absent
      readers/<hash>-g<n>.json  who reads the rows, where they are for another task  put-if-absent, before that one's plan
      seal.json            totals and all staged manifests; seal-2 …   put-if-absent
      groups/<id>.json     who lands together, in the first's folder   put-if-absent, before any of them is bound
      group.json           the commit this generation belongs to       put-if-absent, before the table is touched
      commit.json          the snapshot that the table's history shows put-if-absent, after the table says so
      discard.json         tombstone                                   put-if-absent, before anything is deleted
      compact.json         what stays of the records of a committed one put-if-absent, before the first of them is deleted

**States** are derived from what exists, never stored::

    planned -> staging -> sealed -> committed
         \________\_________\-> discarded, or freed

**Order is the protocol.** An attempt is recorded before it may write a file (I4). Data files are closed before their
manifest is written, and the manifest before ``staged/<split>.json`` publishes it; the first publication wins and what is
not published does not exist (I3). The seal is put after every split is staged. ``group.json`` is put before the first
compare-and-swap on the table, so its absence proves that no commit was ever tried (I10). ``commit.json`` follows the
table and only saves a look at it: the table's own history is the authority.

**Pieces.** A split that takes long is not all or nothing. From time to time the task closes the files that it is writing and
publishes them as a piece, by put-if-absent, with the row of the input up to which they go; the next attempt reads on from there.
Two tasks on one split go on from whichever piece of a number was first. Where rows have no numbers that last, as in a bucket of a
DataFrame, a piece says which ids are done, and does not count for an attempt that has others: that one publishes no pieces. Once
the input has ended, the task that publishes the split writes the rows of all pieces into files of their usual size, without
running the transform again, and removes the pieces' files. So what is sealed and committed knows of no pieces, and a kill in
between leaves them as they are.

**Other code.** The header binds a key to code. A write whose input, kind of transform and output stay may be gone on with under
other code, where its stage says so or a request lies in the store: the attempt puts ``codes/<code>.json`` and keeps all that is
staged. From then on that code is as good as the header's, in any attempt. Each record says which code has computed it.

**Rejected rows.** Where a write goes on behind rows at which its transform fails, a task puts those rows into a file before the
record that names it. As long as the write is not sealed, the next attempt runs them again: a further round lists splits that read
such files, each with a record of its own, so that a row of the input is among the rows of one record, or among the rejected rows of
one, never both. The seal names the files that no split has read again: rows that the write leaves out.

**Rounds.** Most writes are planned once. A write whose later splits depend on what earlier ones found (an upsert, a
recovery by rows) is planned in rounds: each is pinned when the one before it is staged, and lists every split that makes
up the write, so that what is staged is never staged again. A write that replaces rows is sealed provisionally: if the
table moves before the commit, the stage plans another round on what the table is then, stages only what that changes,
and seals again. If staged files are lost before the commit, the cleared stage does the same: it plans a round that lists
other splits in the place of those that lost files, stages those, and seals again; see ``restaged``. The commit takes the newest
seal, and with it the round that the seal names.

Decision: a seal that lost files may be followed by one of a later round, also while a commit of the earlier one is under
way. Each is complete by itself, and both are one generation, whose group lands once, whichever of the two it is.

**Rows for the next task.** A stage without a table stages rows that no commit lands: its seal is all that there is. Who reads them
says so in their generation's folder, and once all readers are done the rows may be freed, by a tombstone of its own kind: the stage
stays done with, and its rows are not computed again unless somebody asks for that. See ``readers``.

**An undo.** A generation of the mode ``undo`` names the committed one that it takes out of the table again, with an empty plan and
an empty seal. It lands as any other does, once. Whoever asks for the generation that it names then, is told that it was undone: by
the table's history, not by the store. An undo that was given up counts as if it had never been.

**Compact records.** Nothing that was put is changed, and only a sweep deletes, long after the last put of a generation. A
discarded generation keeps its header, its group and its tombstone. A committed one keeps header, group and commit, and gets
``compact.json``: what its seal said, without what it listed. Then ``seal.json`` goes, which makes the compact record count, then
all that was sealed, and the attempts last. So at any moment a reader finds either the seal with all its records, or the compact
record; what needs the records is refused by an error that says so, and nothing looks as if it had never been. Whoever opens a
replacement puts its header first and looks for the compact record second, and a sweep does it the other way round.

**Commit against discard.** Both put their object first and look for the other's second, so at least one of them sees
the other: a commit that finds ``discard.json`` stops, a discard that finds ``group.json`` deletes nothing.

**Invariants**, by the numbers used in code and tests:

- I1 once: one key and generation, at most one snapshot in the table's lineage.
- I2 all: rows the commit adds = rows sealed = rows the transform produced.
- I3 first publish wins: a split is published once, by put-if-absent.
- I4 own files only: every file name carries key hash, generation, split and attempt.
- I5 never under a commit: nothing is deleted that a commit in flight may reference; each commit looks at its files.
- I6 bound: the header binds the key to table, branch, mode, source and code.
- I7 closed: a damaged or newer object is an error that names it, never "absent".
- I8 cheap: committed or sealed starts no Spark; otherwise only missing splits run.
- I9 clean: no pickle, no secret, no code in the store.
- I10 absence is not proof: expired history fails closed.
- I11 bounded memory: constant in split size; the driver is linear in splits, never in rows.
- I12 stop means stop: a killed task leaves no Spark job and no half-published split.
- I15 not believed: the store says what was staged; never who we are, what code runs, or where else to go.
"""
