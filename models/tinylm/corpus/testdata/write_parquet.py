"""Writes a Parquet file as pyarrow does, with the texts "document 0" and so on, each fifth one twice and each seventh one null.

    python write_parquet.py PATH COMPRESSION [VERSION]
"""

import sys

import pyarrow as pa
import pyarrow.parquet as pq

texts = [None if i % 7 == 6 else f"document {i // 5 * 5 if i % 5 == 1 else i} " + "word " * (i % 9) for i in range(100)]
table = pa.table({"id": list(range(100)), "text": texts, "score": [0.5] * 100})
pq.write_table(table, sys.argv[1], compression=sys.argv[2], row_group_size=30, data_page_size=200,
               data_page_version=sys.argv[3] if len(sys.argv) > 3 else "1.0", use_dictionary=len(sys.argv) < 5)
