"""The paper's algorithms as pure functions: schedule, policies, topologies and mixing weights."""
