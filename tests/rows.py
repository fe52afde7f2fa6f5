"""Output rows of all kinds in one table, for tests that look at them together, and back."""

import pyarrow as pa
import pyarrow.compute as pc

from schemas.outputs import IDENTITY, OUTPUT, SCHEMAS, Rows


def together(rows: Rows) -> pa.Table:
    """The rows of all kinds in the columns `OUTPUT`, by identity."""
    tables = [OUTPUT.empty_table()]
    for kind, table in rows.items():
        assert table.schema.equals(SCHEMAS[kind], check_metadata=True)
        assert len(table)
        known = {name: table[name] for name in table.column_names} | {"kind": pa.repeat(kind, len(table))}
        columns = [known.get(field.name, pa.nulls(len(table), field.type)) for field in OUTPUT]
        tables.append(pa.table(columns, schema=OUTPUT))
    return pa.concat_tables(tables).sort_by([(name, "ascending") for name in IDENTITY]).combine_chunks()


def by_kind(table: pa.Table) -> Rows:
    """Rows in the columns `OUTPUT`, each kind in the order in which it comes."""
    return {
        kind: table.filter(pc.equal(table["kind"], kind)).select(SCHEMAS[kind].names).cast(SCHEMAS[kind])
        for kind in pc.unique(table["kind"]).to_pylist()
    }
