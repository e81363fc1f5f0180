"""Gates: what must hold before any training job of a study may start."""
