"""What object storage and OpenSearch share: the bytes of objects, and packs of older frames."""
