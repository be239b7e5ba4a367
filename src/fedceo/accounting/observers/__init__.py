"""Views of a run: what each observer sees, and the epsilon that follows; one class per view, one file per kind.

A view says in `supports` which runs it speaks of and in `answer` what it promises an observer. `account` asks every
registered view, so that a new observer's row is one new file here, or one module of another package that the entry
point group "fedceo.accounting.observers" names.
"""
