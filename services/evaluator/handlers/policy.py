"""What others must know of this evaluator's settings, published when it starts with other ones than before."""

from schemas.evaluation import GatePolicyPublished
from services.evaluator import store
from services.evaluator.settings import Settings
from shared.service import Service


async def publish(service: Service, settings: Settings) -> None:
    async with service.unit() as unit:
        fact = GatePolicyPublished(
            required_checks=tuple(sorted(settings.required_checks)),
            judge_urls=tuple(sorted(settings.judge_urls)),
            answer_tokens=settings.max_answer_tokens,
            suites=await store.list_registered(unit.conn),
        )
        if await store.save_policy(unit.conn, fact):
            await unit.emit(fact)
