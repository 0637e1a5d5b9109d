"""One SQLAlchemy engine for the program's own sessions and for the batches."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from sqlalchemy import create_engine, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sluicegate import Batcher, Retry, stack
from sluicegate.sql import SqlSink


class Base(DeclarativeBase):
    pass


class View(Base):
    __tablename__ = "views"

    id: Mapped[int] = mapped_column(primary_key=True)
    page: Mapped[str]
    visitor: Mapped[str]


def counted(session: Session) -> dict[str, int]:
    query = select(View.page, func.count().label("views")).group_by(View.page).order_by(View.page)
    return {row.page: row.views for row in session.execute(query)}


async def main(path: Path) -> None:
    engine = create_engine(f"sqlite:///{path}")
    Base.metadata.create_all(engine)
    sink = SqlSink(engine, table=View.__tablename__, columns=[View.page.key, View.visitor.key])
    async with Batcher(stack(sink, Retry()), name="views") as batcher:
        for visitor in ("ann", "bob", "cid"):
            await batcher.add({"page": "/", "visitor": visitor})
        await batcher.add({"page": "/about", "visitor": "ann"})
        await batcher.flush()
        with Session(engine) as session:  # the engine stays open: it belongs to the program
            print(counted(session))
    engine.dispose()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder) / "views.db"))
