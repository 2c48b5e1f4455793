//! State shared by the processes that have a volume open: arena, participants, robust locks, intents.
