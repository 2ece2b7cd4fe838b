"""Writes Parquet files as pyarrow does, with the texts "document 0" and so on; some come twice and each seventh one is null.

    pip install pyarrow
    python write_parquet.py FOLDER
"""

import sys

import pyarrow as pa
import pyarrow.parquet as pq

texts = [None if i % 7 == 6 else f"document {i - 1 if i % 5 == 1 else i} " + "word " * (i % 9) for i in range(100)]
table = pa.table({"id": list(range(100)), "text": texts, "score": [0.5] * 100})
for compression in ["none", "snappy", "gzip", "brotli", "zstd"]:
    for version in ["1.0", "2.0"]:
        for words in ["dictionary", "plain", "delta"]:
            delta = {"text": ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"][version == "1.0"]} if words == "delta" else None
            pq.write_table(table, f"{sys.argv[1]}/{compression}-{version}-{words}.parquet", compression=compression, row_group_size=30,
                           data_page_size=200, data_page_version=version, use_dictionary=words == "dictionary", column_encoding=delta)
messages = [None if i % 7 == 6 else [{"role": "user", "content": f"question {i}"}, {"role": "assistant", "content": None}][:i % 3] for i in range(100)]
table = pa.table({"doc": [{"title": "t", "body": text, "chat": m} for text, m in zip(texts, messages)], "messages": messages})
for version in ["1.0", "2.0"]:
    pq.write_table(table, f"{sys.argv[1]}/nested-{version}.pq", row_group_size=30, data_page_size=200, data_page_version=version)
